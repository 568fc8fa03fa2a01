"""`fprobe run --stacks PATTERN --sum ARG`: who passes what, by line of Python; the frames are read without the interpreter."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from built_library import build_library, needs_compilers
from isolation import isolated
from sampled import in_stress

from fprobe.calls.stack_memory import Code, line_at

HEAD = 33 if sys.version_info >= (3, 15) else 1
"""Bytes that a bytearray allocates beside its own: from 3.15 on, it holds a bytes object."""
SIZES = """
import asyncio, ctypes, sys, threading
def plain(n): return bytearray(n)
def generator():
    for _ in range(3):
        yield plain(20_000)
async def coroutine():
    await asyncio.sleep(0)
    return plain(30_000)
def deeper(n):
    if n:
        return deeper(n - 1)
    return [bytearray(40_000) for _ in range(2)]
class Thing:
    def __init__(self):
        self.held = (
            bytearray(50_000)
        )
def of_a_name(name):
    code = compile(f"def {name}():\\n    return bytearray(60_000)\\n{name}()", f"/{name}", "exec")
    exec(code, {})
def without_the_lock():
    ctypes.CDLL(None).calloc(1, 70_000)
for _ in range(4): plain(10_000)
list(generator()); asyncio.run(coroutine()); deeper(50); Thing()
for number in range(20): of_a_name(f"made_{number}")
thread = threading.Thread(target=without_the_lock); thread.start(); thread.join()
"""
"""Lines that allocate: each size is above what the interpreter takes for itself."""


def lines_of(report):
    """By function, Python's function and line: calls and sum."""
    (process,) = report["processes"]
    assert process["stacks_lost"] == process["stacks_cut"] == 0
    (argument,) = {key for row in process["lines"] for key in row["sum"]}
    return {
        (row["function"].partition(" ")[0], row["python"], row["line"]): (row["hits"], row["sum"][argument])
        for row in process["lines"]
        if row["file"] and (row["file"].endswith("app.py") or row["file"].startswith("/made_"))
    }


CALLOCS = """
import ctypes
calloc = ctypes.CDLL(None).calloc
for number in range(1, 11): calloc(number, ctypes.c_long(700))
"""


def plain_name(name):
    """As before Python 3.11, where code objects have no qualified names."""
    return name if sys.version_info >= (3, 11) else name.rpartition(".")[2]


@pytest.mark.stress
def test_bytes_by_line(launch):
    done = launch("--stacks", "libc:malloc", "--sum", "arg1", "--where", "arg1 > 9999", source=SIZES)
    listed = "deeper.<locals>.<listcomp>" if sys.version_info < (3, 12) else "deeper"
    expected = {
        ("malloc", "plain", 3): (8, 130_000 + 8 * HEAD),
        ("malloc", plain_name(listed), 13): (2, 80_000 + 2 * HEAD),
        ("malloc", plain_name("Thing.__init__"), 17): (1, 50_000 + HEAD),
        **{("malloc", f"made_{number}", 2): (1, 60_000 + HEAD) for number in range(20)},
    }
    functions = {
        python for _, python, _ in expected
    }  # the compiler in of_a_name may resize the interpreter's table of names
    assert {key: sums for key, sums in lines_of(done.report).items() if key[1] in functions} == expected
    (process,) = done.report["processes"]
    (deep,) = [each for each in process["stacks"] if any("deeper" in frame for frame in each["frames"])]
    assert sum(frame.startswith("deeper (app.py:12)") for frame in deep["frames"]) == 50
    callers = {frame.partition(" ")[0] for each in process["stacks"] for frame in each["frames"]}
    assert {"generator", "coroutine"} <= callers


@pytest.mark.stress
def test_a_thread_without_the_interpreters_lock(launch):
    """ctypes releases it around the call."""
    done = launch("--stacks", "libc:calloc", "--sum", "arg2", "--where", "arg2 == 70000", source=SIZES)
    assert lines_of(done.report) == {("calloc", "without_the_lock", 23): (1, 70_000)}


@pytest.mark.stress
def test_the_product_of_two_arguments_is_added_up(launch):
    done = launch("--stacks", "libc:calloc", "--sum", "nmemb:u64*size", "--where", "size == 700", source=CALLOCS)
    assert lines_of(done.report) == {("calloc", "<module>", 4): (10, 55 * 700)}


@pytest.mark.stress
def test_the_table_and_the_stacks_as_text(launch):
    options = ("--stacks", "libc:malloc", "--sum", "arg1", "--where", f"arg1 == {50_000 + HEAD}")
    done = launch(*options, source=SIZES, as_json=False)
    init = plain_name("Thing.__init__")
    assert done.err.splitlines()[1:] == [
        "#           ARG1          CALLS  FUNCTION, LINE",
        f"          {50_000 + HEAD:,}              1  malloc [libc], {init} (app.py:17)",
        f"{50_000 + HEAD:,} arg1          1 calls  malloc [libc]",
        f"                             <- {init} (app.py:17)",
        "                             <- <module> (app.py:25)",
    ]


@pytest.mark.stress
def test_the_example_of_the_page(launch, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[3])
    shown = re.search(r"\$ fprobe run (--stacks libc:malloc .*)\n([^`]*)```", Path("docs/run.md").read_text())
    *options, program = shlex.split(shown[1])
    done = launch(*options, words=(program,), as_json=False)
    expected = shown[2]
    for bytearrays, size in ((11, 2_050_000), (10, 2_000_000), (1, 50_000)):
        expected = expected.replace(f"{size + bytearrays:,}", f"{size + bytearrays * HEAD:,}")
    assert _comparable(done.out + done.err) == _comparable(expected)


def _comparable(text):
    """The lines without what differs between processes and between versions of Python.

    Whether the program is an archive, Python 3.14 and later find out with larger buffers than are left out.
    """
    text = re.sub(r"^.* calls .*\n( +<- .*<frozen zipimport>.*\n)+", "", text, flags=re.MULTILINE)
    text = re.sub(r"^.*<frozen zipimport>.*\n", "", text, flags=re.MULTILINE)
    lines = [line.replace("Cache.", "") for line in text.splitlines() if "listcomp" not in line]
    return [line for line in lines if not line.startswith("# process")]


@pytest.mark.stress
def test_calls_that_pass_a_filter_are_counted_where_nothing_is_added_up(launch):
    done = launch(
        "--stacks",
        "libc:malloc",
        "--where",
        f"arg1 == {10_000 + HEAD}",
        "--format",
        "folded",
        source=SIZES,
        as_json=False,
    )
    assert done.err == "<module> (app.py:24);plain (app.py:3);malloc [libc] 4\n"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--sum", "arg1"), "for the calls of --hist and --stacks; give one of them, too"),
        (("--stacks", "libc:malloc", "--sum", "retval"), "a stack is taken when the function is entered"),
        (("--stacks", "libc:malloc", "--sum", "a b"), "'a b' is not an argument"),
        (("--stacks", "libc:malloc", "--of", "arg1"), "give --hist PATTERN, too"),
        (("--stacks", "libc:malloc", "--sum", "arg1*arg1*arg1"), "'arg1*arg1' is not an argument"),
        (("--stacks", "libc:malloc", "--sum", "arg1*"), "'' is not an argument"),
        in_stress((("--stacks", "libc:malloc", "--sum", "nope"), "This variable is not found at this probe point")),
        in_stress(
            (("--stacks", "libm:pow", "--sum", "x"), "x is not in a general register or on the stack: a float, perhaps")
        ),
        in_stress((("--stacks", "libz:inflateResetKeep", "--sum", "nope"), "are not known; give $arg1, $arg2")),
        in_stress((("--stacks", "libc:open64", "--sum", "file:string"), "only numbers can be added up")),
        in_stress((("--stacks", "libc:malloc", "--sum", "arg1", "--where", "arg1 ~~ 3"), "arg1 ~~ 3")),
    ],
)
def test_what_cannot_be_added_up(launch, options, sentence):
    done = launch(*options, words=("-c", "import math, zlib"), as_json=False)
    assert done.returncode in (1, 2) and sentence in done.err


def test_a_format_without_sums(launch, tmp_path):
    done = launch(
        "--stacks", "libc:malloc", "--sum", "arg1", "-o", tmp_path / "x.parquet", words=("-c", ""), as_json=False
    )
    assert done.returncode == 2 and "not values of arguments" in done.err


def _codes(code):
    yield code
    for inner in code.co_consts:
        if isinstance(inner, type(code)):
            yield from _codes(inner)


def test_lines_are_those_of_the_interpreter():
    """Every instruction of a module with much of everything."""
    source = Path(json.decoder.__file__).read_text()
    for code in _codes(compile(source, "decoder.py", "exec")):
        kept = Code(code.co_filename, code.co_name, code.co_firstlineno, code.co_linetable)
        for start, end, line in code.co_lines():
            for offset in range(start, end, 2):
                assert line_at(kept, offset, sys.version_info.minor) == (line or 0)


@isolated
def test_a_layout_that_does_not_fit_is_refused_in_a_sentence():
    from fprobe.run import session
    from fprobe.run.session import Settings
    from fprobe.run.tracee.stacks import shared_stacks
    from fprobe.run.tracee.table import MapSpace, Table
    from ftrace.core.unwind.python_layouts import LAYOUTS

    counts, journal = session.create(settings := Settings(stacks=("libc:malloc",)))
    address, version = session.address_of(counts, journal), sys.version_info[:2]
    right = LAYOUTS[version]
    for wrong in ({"place": right["place"] - 8}, {"name": right["filename"]}, {"previous": 1 << 46}, {"code": 64}):
        LAYOUTS[version] = right | wrong
        shared_stacks(address, MapSpace(Table(counts, settings))).end()
    LAYOUTS[version] = right
    shared_stacks(address, MapSpace(Table(counts, settings))).end()
    remarks = [entry["remark"] for entry in session.entries(journal) if "remark" in entry]
    assert len(remarks) == 4
    assert all("--stacks shows no frames of Python: those of Python 3." in each for each in remarks)


C = """
#include <stdlib.h>
#include <sys/mman.h>
void *of_malloc(size_t n) { return malloc(n); }
void *of_calloc(size_t n) { return calloc(2, n); }
void *of_realloc(void *p, size_t n) { return realloc(p, n); }
void *of_posix(size_t n) { void *p = 0; posix_memalign(&p, 64, n); return p; }
void *of_aligned(size_t n) { return aligned_alloc(64, n); }
void *of_valloc(size_t n) { return valloc(n); }
void *of_mmap(size_t n) { return mmap(0, n, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }
"""
ALLOCATES = """
import ctypes, sys, zlib
library = ctypes.CDLL(sys.argv[1])
for name in ("malloc", "calloc", "posix", "aligned", "valloc", "mmap", "realloc"):
    globals()[name] = getattr(library, f"of_{name}")
    globals()[name].restype = ctypes.c_void_p
realloc.argtypes = ctypes.c_void_p, ctypes.c_size_t
def plain(n):
    return bytearray(n)
def grown():
    held = bytearray(1000)
    for _ in range(20):
        held += b"x" * 700
    return held
def in_c(n):
    found = malloc(n)
    realloc(found, 2 * n)
    calloc(n + 1); posix(n + 2)
    aligned(64 * n); valloc(n + 4)
    mmap(4096 * n)
def packed():
    return zlib.compress(b"abc" * 10_000)
def deeper(n):
    if n:
        return deeper(n - 1)
    return [plain(2000 + each) for each in range(30)]
def all_of_it():
    for _ in range(5):
        plain(3000)
    grown(); packed(); deeper(20); plain(300_000)
    for each in range(10):
        in_c(1000 + each)
all_of_it()
"""
SUMS = {
    "malloc": "arg1", "calloc": "arg1*arg2", "realloc": "arg2", "posix_memalign": "arg3", "aligned_alloc": "arg2",
    "valloc": "arg1", "mmap": "arg2",
}  # fmt: skip
"""Which argument of an allocator is the number of bytes, or which two are its factors."""


@pytest.mark.stress
@needs_compilers
def test_sums_are_those_of_memray(launch, tmp_path):
    memray = pytest.importorskip("memray", reason="pip install memray")
    build_library(library := tmp_path / "allocates.so", C)
    (tmp_path / "app.py").write_text(ALLOCATES)
    words = (str(tmp_path / "app.py"), str(library))
    file = tmp_path / "memray.bin"
    subprocess.run([sys.executable, "-m", "memray", "run", "-q", "-o", file, *words], check=True, timeout=60)
    theirs = defaultdict(lambda: (0, 0))
    for record in memray.FileReader(file).get_allocation_records():
        name = memray.AllocatorType(record.allocator).name.lower()
        stack = record.stack_trace(1) if record.size else []
        if name in SUMS and stack and stack[0][1] == words[0] and stack[0][0] != "<module>":
            calls, total = theirs[key := (name, stack[0][0], stack[0][2])]
            theirs[key] = calls + 1, total + record.size
    ours = {}
    for function, argument in SUMS.items():
        found = lines_of(launch("--stacks", f"libc:{function}", "--sum", argument, words=words).report)
        ours |= {(function, name, line): value for (_, name, line), value in found.items() if name != "<module>"}
    assert {(key[0], key[1].rpartition(".")[2], key[2]): value for key, value in ours.items()} == dict(theirs)
    assert {key[0] for key in theirs} == set(SUMS)
