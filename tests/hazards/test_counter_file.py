"""HAZARDS 3: counters are in a file that other processes can read, and that holds only what was counted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from isolation import isolated, run
from programs import basic, load_c
from sampled import in_stress
from test_tasks import THREADS, needs_cc

READER = """
import sys
from sandbox.threads import counters
header = counters.header_of(int(sys.argv[1]))
number = int(sys.argv[2])
print(header.pid, len(counters.used_rows(int(sys.argv[1]), header)), *counters.total(int(sys.argv[1]), header, number))
"""


def number_of(probe) -> int:
    from sandbox.threads import tasks

    return (probe.fp.ops.probe.native.counters - tasks.COUNTERS) // tasks.Counters.size


def pages() -> int:
    from ftrace.core.runtime import runtime

    return os.fstat(runtime().counters.fd).st_blocks // 8


@isolated
def test_another_process_reads_the_counts():
    import fprobe
    from ftrace.core.runtime import runtime

    module = basic()
    with fprobe.attach(["factorial"], action=fprobe.Stat(), nr_maxactive=4) as probe:
        module["factorial"](10)
        fd = runtime().counters.fd
        done = subprocess.run(
            [sys.executable, "-c", READER, str(fd), str(number_of(probe))],
            pass_fds=[fd], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        assert done.stdout.split() == [str(os.getpid()), "1", "10", "0", "6", "0", "0", "0", "0"], done.stdout
        assert probe.counts[:6] == (10, 0, 6, 0, 0, 0)


@isolated
def test_a_file_without_counters_is_refused():
    from sandbox.threads import counters

    with open(__file__) as other, pytest.raises(ValueError, match="not a file of counters"):  # noqa: PTH123
        counters.header_of(other.fileno())
    reader, _writer = os.pipe()
    with pytest.raises(OSError):
        counters.header_of(reader)
    fd = os.memfd_create("later")
    os.pwrite(fd, counters.MAGIC + (counters.VERSION + 1).to_bytes(4, "little") + bytes(60), 0)
    with pytest.raises(ValueError, match=f"version {counters.VERSION + 1}"):
        counters.header_of(fd)


@pytest.mark.stress
@needs_cc
@isolated(timeout=60)
def test_1000_threads_take_a_page_each_and_readers_none():
    import fprobe
    from ftrace.core.runtime import runtime
    from ftrace.core.tracer import tracer

    module, lines = load_c(THREADS), tracer().table.lines
    with fprobe.attach(["leaf"], action=fprobe.Stat(), nr_maxactive=2000) as probe:
        for _ in range(3):
            module["all_at_once"](1000)
        found = (probe.hits, probe.counts, len(runtime().tasks()))
        assert found[0] == 3000 and found[1].missed == 0 and 1000 <= found[2] <= 1010, found
        taken = pages()
        assert 1000 <= taken <= 1020
        unused = [lines.take() for _ in range(200)]
        for offset in unused:
            assert lines.total(offset).hits == 0
            lines.give(offset)
        assert pages() == taken
    with fprobe.attach(["leaf"], action=fprobe.Stat(), nr_maxactive=3) as short:  # its pool is switched
        module["all_at_once"](100)
        assert short.hits == 100
    module["all_at_once"](1000)
    assert pages() == taken


def in_child(check) -> None:
    """Fork; `check()` in the child says whether all is well."""
    child = os.fork()
    if not child:
        status = 1
        try:
            status = 0 if check() else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


@isolated
def test_a_forked_child_counts_in_a_file_of_its_own():
    import fprobe
    from ftrace.core.runtime import runtime

    module = basic()
    with fprobe.attach(["factorial"], action=fprobe.Stat(), nr_maxactive=5) as probe:
        module["factorial"](3)
        for round_ in range(1, 31):
            inode = os.fstat(runtime().counters.fd).st_ino

            def check(seen=3 * round_, inode=inode):
                inherited = probe.hits == seen
                module["factorial"](4)
                own = os.fstat(runtime().counters.fd).st_ino != inode and runtime().counters.header.pid == os.getpid()
                module["factorial"](6)
                return inherited and own and probe.counts[:6] == (seen + 10, 0, 1, 0, 0, 0)

            in_child(check)
            assert os.fstat(runtime().counters.fd).st_ino == inode
            module["factorial"](3)
            assert probe.counts[:6] == (3 * round_ + 3, 0, 0, 0, 0, 0)
        module["factorial"](7)
        assert probe.counts.missed_nodes == 2  # the pool is whole
        maps = Path("/proc/self/maps").read_text()
        assert maps.count("memfd:fprobe-counters") <= 3


INNER = """
static long (*inner)(long);
__attribute__((noipa)) long outer(long x) { return inner ? inner(x) + 1 : x; }
void set(void *to) { inner = to; }
"""


@needs_cc
@isolated
def test_a_fork_within_a_hooked_call_leaves_both_sides_their_nodes():
    import ctypes

    import fprobe

    module = load_c(INNER)
    forks = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_long)(lambda _: os.fork())
    with fprobe.attach(["outer"], action=fprobe.Stat(), nr_maxactive=1) as probe:
        for _ in range(10):
            module["set"](ctypes.cast(forks, ctypes.c_void_p).value)
            child = module["outer"](0) - 1
            module["set"](0)
            for _ in range(5):
                module["outer"](0)
            if not child:
                os._exit(probe.counts.missed)
            assert os.waitpid(child, 0)[1] == 0 and probe.counts.missed == 0


LIMITED = """
import resource, sys
sys.path.insert(0, "tests")
import sandbox, fprobe
from programs import basic
module = basic()
resource.setrlimit(resource.RLIMIT_{limit}, ({value}, {value}))
import os
with fprobe.attach(["factorial"], action=fprobe.Stat(), nr_maxactive=4) as probe:
    module["factorial"](10)
    assert (probe.hits, probe.counts.missed_nodes) == (10, 6)
    child = os.fork()
    module["factorial"](10)
    assert (probe.hits, probe.counts.missed_nodes) == (20, 12)
    if not child:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
for _ in range(3):
    with fprobe.attach(["factorial"], action=fprobe.Stat(), nr_maxactive=100) as probe:
        assert probe.hits == 0
        module["factorial"](10)
        assert (probe.hits, probe.counts.missed) == (10, 0)
    del probe
from ftrace.core.runtime import runtime
print("file" if runtime().counters.readable else "memory")
"""


@pytest.mark.parametrize("limit, value, kept_in", [("FSIZE", 1 << 24, "memory"), in_stress(("AS", 40 << 30, "file"))])
def test_under_a_limit(limit, value, kept_in):
    """ulimit -f, ulimit -v: no file may be so large, though it takes no room; so counters are private."""
    done = run([sys.executable, "-c", LIMITED.format(limit=limit, value=value)], 60)
    assert (done.returncode, done.stdout) == (0, f"{kept_in}\n"), done.stderr


SHORT_FILES = """
import os, resource
import fprobe, sandbox
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
try:
    module = sandbox.load("define i64 @leaf(i64 %x) {{ ret i64 %x }}")
    with fprobe.event("f:short leaf"):
        module["leaf"](4)
except OSError as error:
    print(error.strerror)
"""


@pytest.mark.parametrize("limit, what", [(512, "takes 4096 bytes"), in_stress((1 << 20, "pool .* takes [0-9]+ bytes"))])
def test_a_limit_of_the_size_of_files_is_named(limit, what):
    """It was `File too large`, of no file of the user's."""
    done = run([sys.executable, "-c", SHORT_FILES.format(limit=limit)], 60)
    assert re.search(rf"{what}: RLIMIT_FSIZE \(ulimit -f\) is {limit} bytes for this process; raise it", done.stdout), (
        done.stderr
    )


@isolated
def test_counters_whose_descriptor_the_program_has_closed():
    import fprobe
    from ftrace.core.runtime import runtime

    module = basic()
    with fprobe.attach(["factorial"], action=fprobe.Stat(), nr_maxactive=4) as probe:
        module["factorial"](10)
        fd = runtime().counters.fd
        os.close(fd)
        assert probe.counts[:3] == (10, 0, 6)
        os.dup2(os.open("/dev/zero", os.O_RDWR), fd)  # another file by that number
        module["factorial"](10)
        assert probe.counts[:3] == (20, 0, 12)

        def check():
            module["factorial"](10)
            return probe.counts[:3] == (30, 0, 18)

        in_child(check)
        assert probe.counts[:3] == (20, 0, 12)


@isolated
def test_core_dumps_leave_the_counters_out():
    """One would allocate all of the sparse file."""
    import fprobe

    module = basic()
    with fprobe.attach("leaf", action=fprobe.Count()):
        module["leaf"](1)
        areas = re.findall(r"fprobe-counters.*?VmFlags: ([^\n]*)", Path("/proc/self/smaps").read_text(), re.DOTALL)
    assert areas and all("dd" in flags.split() for flags in areas)
