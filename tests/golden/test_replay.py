"""The public transcripts that are about definitions alone replay without a difference."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from isolation import run_module
from namespaces import needs_fuse
from sampled import in_stress, sampled

from tests.golden.transcript import Step, differs, normalised, parse

DATA = Path(__file__).parent / "data"
WHOLE = [
    "arg-01-registers",
    "del-01-forms",
    "err-04-offset",
    "evt-01-enable",
    "filter-02-string",
    "graph-03-with-probes",
    "multi-01-same-event",
    "sff-03-commands",
]
"""One of most subjects."""
MORE = [
    "def-04-autoname",
    "err-01-deref-syntax",
    "func-01-tracer",
    "hdr-01-trace-header",
    "io-01-semantics",
    "multi-04-dynamic-events",
    "pid-01",
    "type-05-strings",
    "arg-06-symbols",
    "def-01-basic-p",
    "def-06-groups",
    "err-02-too-many",
    "err-03-long-line",
    "graph-01-basic",
    "multi-03-multiline",
    "sff-01-globs",
    "type-10-bad-types",
]


@pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="the stand-in kernel is in C")
@pytest.mark.parametrize("name", [*sampled(WHOLE, 4), *map(in_stress, MORE)])
def test_the_kernels_transcript(name):
    done = run_module("tests.golden", "--here", str(DATA / f"{name}.txt"), timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_fuse
@pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="the stand-in kernel is in C")
@pytest.mark.parametrize(
    "name", ["io-01-semantics", *(pytest.param(name, marks=pytest.mark.stress) for name in [*WHOLE, *MORE])]
)
def test_the_same_through_the_mounted_tree(name):
    done = run_module("tests.golden", "--here", "--mount", str(DATA / f"{name}.txt"), timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_difference_is_seen():
    steps = parse("# case: x\n$ cat a\n! EINVAL\n1\n$ echo 'a\n> b' > c\n$ cat d\nshort$ cat e\nf\n")
    assert steps[0] == Step("cat a", ["EINVAL"], ["1"])
    assert steps[1] == Step("echo 'a\nb' > c")
    assert steps[2:] == [Step("cat d", [], ["short"]), Step("cat e", [], ["f"])]
    assert differs(steps[0], Step("cat a", [], ["1"])) and differs(steps[0], Step("cat a", ["EINVAL"], ["2"]))
    assert not differs(steps[0], Step("cat a", ["EINVAL"], ["1"]))


def test_only_what_the_format_allows_is_ignored():
    line = "             hit-153     [000] .....     3.238174: lis: (__sys_listen+0x4/0xc0) fd=0x4d backlog=0x5"
    other = "             hit-9       [011] .N.1.  9003.000001: lis: (__sys_listen+0x0/0x20) fd=0x4d backlog=0x5"
    assert normalised(line) == normalised(other)
    assert normalised(line) != normalised(line.replace("0x4d", "0x4e"))
    assert normalised(line) != normalised(line.replace("lis:", "lit:"))
    assert normalised("[    3.6] trace_kprobe: x") != normalised("trace_kprobe: x")


@pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="the stand-in kernel is in C")
def test_commands_come_and_go_on_one_cpu(tmp_path):
    script = tmp_path / "cpu.txt"
    script.write_text(
        "# case: cpu\n$ sh -c 'echo a > trace_marker; echo b >> trace_marker'\n$ echo 'c' > trace_marker\n$ ls -1 per_cpu\ncpu0\n"
    )
    done = run_module("tests.golden", "--here", str(script), timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


_TAKEN = """
import ctypes, mmap, sys
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
assert libc.mmap(ctypes.c_void_p(0x10000000), 1 << 20, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10, -1, 0) == 0x10000000
from tests.golden.__main__ import DATA, replay
sys.exit(not all(replay(DATA / name, False, False) for name in ("btf-01-args.txt",)))
"""


def test_it_replays_where_the_address_of_its_memory_is_taken():
    """As by the heap of a Python that is not position-independent."""
    done = subprocess.run(
        [sys.executable, "-c", _TAKEN], capture_output=True, text=True, timeout=100, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == 0, done.stdout + done.stderr
