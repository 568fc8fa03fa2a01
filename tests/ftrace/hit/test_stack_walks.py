"""Native stack walks agree with the C library's unwinder, whatever the functions on the way are compiled to (TE-3.8, TE-7.9)."""

import ctypes
import shutil
import sys
from pathlib import Path

import pytest
from isolation import isolated
from sampled import in_stress, sampled

import sandbox
import sandbox.demo

needs_cc = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")

PROGRAM = r"""
#include <signal.h>
#include <stdlib.h>
#define CALL __attribute__((noinline, noipa))
static volatile long sink;
CALL long leaf(long x) { return sink = x; }
CALL long variable(long n) { char room[n * 16 + 1]; volatile char *p = room; p[n] = 1; return leaf(n) + p[n]; }
CALL long realigned(long n) { long room[8] __attribute__((aligned(64))); volatile long *p = room; p[1] = n;
                              return variable(n) + p[1]; }
CALL long many(long a, long b, long c, long d, long e, long f, long g) { return realigned(a + b + c + d + e + f + g) + g; }
static int compare(const void *a, const void *b) { many(1, 0, 0, 0, 0, 0, 1); return *(int *)a - *(int *)b; }
CALL long sorted(long n) { int numbers[3] = {3, n, 2}; qsort(numbers, 3, sizeof(int), compare); return numbers[0]; }
static void handler(int number) { sorted(number); }
CALL long interrupted(long n) { raise(SIGUSR2); return n + 1; }
CALL long top(long n) { signal(SIGUSR2, handler); return interrupted(n) + leaf(n); }
"""


def _walked(ip, sp, bp):
    from ftrace.core.runtime import runtime
    from ftrace.hit.unwind.walk import MAX_DEPTH, StackPoint

    point, entries = StackPoint.ctypes(ip, sp, bp), (ctypes.c_uint64 * MAX_DEPTH)()
    count = runtime().image.call("ftrace_walk_stack", ctypes.addressof(point), ctypes.addressof(entries), MAX_DEPTH)
    return entries[:count]


def _compared(target, call):
    """How deep the stacks were that both ways have seen at calls of `target`; those outside the program are dropped."""
    import fprobe
    from ftrace.core.unwind.code_map import unwind_tables

    depths = set()

    def entry(fp, entry_ip, ret_ip, regs, data):
        mine, theirs = _walked(entry_ip, regs.sp, regs.bp), fprobe.stack_trace_save()
        assert mine[1:] == theirs[1:], (list(map(hex, mine)), list(map(hex, theirs)))
        depths.add(len(mine))

    unwind_tables().refresh()
    with fprobe.attach(target, entry=entry, exit=lambda *_: None):
        call()
    return depths


@isolated
def test_in_a_program_of_llvm_ir():
    module = sandbox.load(sandbox.demo.source(), name="demo")
    assert max(_compared("vfs_*", lambda: module["demo_main"](1))) >= 10


@needs_cc
@pytest.mark.parametrize(
    "flags", [("-O2",), in_stress((("-O0",),)), in_stress((("-O1", "-fno-omit-frame-pointer"),)), ("-O2", "-mavx2")]
)
@isolated
def test_in_c(flags):
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "stacks.c")
        path.write_text(PROGRAM)
        module = sandbox.load(path, name="stacks", cflags=flags)
    # leaf, variable, realigned, many, compare, qsort's functions, sorted
    assert max(_compared("leaf", lambda: module["sorted"](2))) >= 7


@needs_cc
@isolated
def test_through_the_frame_of_a_signal():
    import tempfile

    from fprobe.tracefs import tracefs

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "stacks.c")
        path.write_text(PROGRAM)
        module = sandbox.load(path, name="stacks")
    tracefs.write("dynamic_events", "p:t stacks:leaf")
    tracefs.write("events/kprobes/t/trigger", "stacktrace:1")
    module["top"](2)
    lines = [line for line in tracefs.read("trace").splitlines() if line.startswith(" => ")]
    names = [line[4:].removesuffix(" [stacks]") for line in lines if line.endswith(" [stacks]")]
    inside = ["leaf", "variable", "realigned", "many", "compare"]
    assert names == [*inside, "sorted", "handler", "interrupted", "top"], lines


@needs_cc
@isolated
def test_without_tables_by_frame_pointers():
    import tempfile

    import fprobe
    from ftrace.core.unwind.code_map import unwind_tables

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "bare.c")
        path.write_text(PROGRAM)
        flags = ("-O1", "-fno-omit-frame-pointer", "-fno-asynchronous-unwind-tables")
        module = sandbox.load(path, name="bare", cflags=flags)
    unwind_tables().refresh()
    found = []

    def entry(fp, entry_ip, ret_ip, regs, data):
        # At the entry rbp is the caller's, whose own caller is the first that is found.
        found.append([sandbox.symbol_table.locate(at).symbol.name for at in _walked(entry_ip, regs.sp, regs.bp)])

    with fprobe.attach("leaf", entry=entry):
        module["many"](1, 0, 0, 0, 0, 0, 1)
    assert found == [["leaf", "realigned", "many"]]


@isolated
def test_nothing_that_a_walk_is_given_harms():
    import random

    from ftrace.core.unwind.code_map import unwind_tables

    module = sandbox.load(sandbox.demo.source(), name="demo")
    unwind_tables().refresh()
    chosen = random.Random(7)
    room = ctypes.create_string_buffer(chosen.randbytes(4096), 4096)
    places = [symbol.address + chosen.randrange(symbol.size) for symbol in module.functions if symbol.size]
    for _ in range(2000):
        stack = chosen.choice((ctypes.addressof(room) + chosen.randrange(4096), chosen.getrandbits(64), 0, 8))
        assert len(_walked(chosen.choice(places), stack, chosen.choice((stack, chosen.getrandbits(64))))) >= 1
    assert _walked(0, 0, 0) == [0]


@isolated
def test_a_module_that_is_gone_ends_the_walk():
    from ftrace.core.unwind.code_map import unwind_tables

    module = sandbox.load(sandbox.demo.source(), name="demo")
    unwind_tables().refresh()
    address = module.symbol("vfs_read").address
    stack = (ctypes.c_uint64 * 64)(*[address + 1] * 64)
    assert len(_walked(address, ctypes.addressof(stack), 0)) > 1
    module.unload()
    assert len(_walked(address, ctypes.addressof(stack), 0)) <= 64
    unwind_tables().refresh()
    assert len(_walked(address, ctypes.addressof(stack), 0)) == 1


TRACE = """
import sandbox, sandbox.demo
from fprobe.tracefs import tracefs

module = sandbox.load(sandbox.demo.source(), name="demo")
tracefs.write("dynamic_events", "p:t vfs_read a=%dx\\nr:u vfs_read\\nf:w vfs_read%return r=$retval\\np:x vfs_read+5\\n")
EVENTS = ("kprobes/t", "kprobes/u", "fprobes/w", "kprobes/x")

def stacks():
    found, name = {}, ""
    for line in tracefs.read("trace").splitlines():
        if line.startswith(" => "):
            found.setdefault(name, []).append(line[4:].split("+")[0].removesuffix(" [demo]"))
        elif ": (" in line:
            name = line.split()[4].rstrip(":")
    return found

def hit():
    for event in EVENTS:
        tracefs.write(f"events/{event}/enable", "1")
    module["demo_main"](1)
    for event in EVENTS:
        tracefs.write(f"events/{event}/enable", "0")

CALLERS = ["ksys_read", "__x64_sys_read", "do_syscall", "sys3", "demo_read", "demo_io", "demo_round", "demo_run", "demo_main"]
EXPECTED = {"t": ["vfs_read", *CALLERS], "x": ["vfs_read", *CALLERS], "u": CALLERS, "w": CALLERS}
"""


def _run(source):
    exec(compile(TRACE + source, "<traced>", "exec"), {})


@isolated
def test_the_trigger_records_the_stack_of_entries_and_returns():
    _run("""
for event in EVENTS:
    tracefs.write(f"events/{event}/trigger", "stacktrace:1 if common_pid != 0")
hit()
assert stacks() == EXPECTED, stacks()
assert [tracefs.read(f"events/{event}/trigger") for event in EVENTS] == ["stacktrace:count=0 if common_pid != 0\\n"] * 4
""")


@isolated
def test_the_option_records_the_stack_of_each_record_that_the_filter_passes():
    _run("""
tracefs.write("trace_options", "stacktrace")
tracefs.write("events/kprobes/t/filter", "a < 0")
hit()
assert {name: stack[:len(EXPECTED[name])] for name, stack in stacks().items()} == {
    name: EXPECTED[name] for name in "uwx"}
lines = tracefs.read("trace").splitlines()
assert sum("<stack trace>" in line for line in lines) == sum(": (" in line for line in lines)
""")


@isolated
def test_user_stacks_have_addresses():
    _run("""
tracefs.write("trace_options", "userstacktrace")
hit()
lines = [line for line in tracefs.read("trace").splitlines() if " =>  <" in line]
assert lines and all(len(line) == len(" =>  <0123456789abcdef>") for line in lines)
""")


@isolated
def test_a_histogram_has_stacks_as_keys():
    _run("""
tracefs.write("events/kprobes/t/trigger", "hist:keys=common_stacktrace")
hit()
text = tracefs.read("events/kprobes/t/hist")
frames = [line.strip().split("+")[0] for line in text.splitlines() if line.startswith(" " * 9)]
assert frames[:10] == EXPECTED["t"], text
assert "} hitcount:" in text
""")


# Code without a table that calls its fourth argument: perf's trampolines of CPython, and what a JIT with frame pointers makes.
WITHOUT_TABLES = {
    "space on the stack": "4883ec08 ffd1 4883c408 c3",
    "rbp saved": "55 4889e5 ffd1 5d c3",
    "a frame": "55 4889e5 53 4883ec38 ffd1 488b5df8 c9 c3",
}


WITHOUT_FRAME = "55 31ed 4883ec40 ffd1 4883c440 5d c3"
"""The same that uses rbp for something else."""


def _walked_without_and_with(code):
    """The walks from a function that is called directly, and by this code; and the range of the code."""
    import mmap
    import tempfile

    import fprobe
    from ftrace.core.unwind.code_map import unwind_tables

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "stacks.c")
        path.write_text(PROGRAM)
        module = sandbox.load(path, name="stacks")
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(bytes.fromhex(code))
    between = ctypes.addressof(ctypes.c_char.from_buffer(page))
    unwind_tables().refresh()
    found = []

    def entry(fp, entry_ip, ret_ip, regs, data):
        found.append(_walked(entry_ip, regs.sp, regs.bp))

    variable = module.symbol("variable").address
    with fprobe.attach("leaf", entry=entry):
        for address in (variable, between):
            ctypes.CFUNCTYPE(ctypes.c_long, *[ctypes.c_long] * 4)(address)(3, 0, 0, variable)
    return *found, range(between, between + mmap.PAGESIZE)


@needs_cc
@pytest.mark.parametrize("code", sampled(WITHOUT_TABLES.values(), 1), ids=WITHOUT_TABLES)
@isolated
def test_perfs_trampolines_and_frames_of_the_jit_are_crossed(code):
    """The frames on both sides are those of a call without the code between, which has none itself."""
    plain, crossed, _ = _walked_without_and_with(code)
    assert len(crossed) > 4
    # leaf, variable, and their caller in libffi; between that and the process's start, calls of the interpreter may be others.
    assert crossed[:3] == plain[:3] and crossed[-1] == plain[-1], (list(map(hex, plain)), list(map(hex, crossed)))


@needs_cc
@isolated
def test_a_walk_ends_with_an_address_in_code_that_it_cannot_cross():
    plain, ended, code = _walked_without_and_with(WITHOUT_FRAME)
    assert ended[:2] == plain[:2] and ended[2] in code and len(ended) == 3, list(map(hex, ended))


@pytest.mark.skipif(not hasattr(sys, "activate_stack_trampoline"), reason="Python has perf trampolines from 3.12 on")
@isolated(cold=True)
def test_a_handler_sees_the_programs_stack_through_perfs_trampolines():
    import zlib

    import fprobe
    from sandbox.images.process_text import symbol_at

    seen = []

    def entry(fp, entry_ip, ret_ip, regs, data):
        seen.extend(symbol.name if (symbol := symbol_at(at)) else "?" for at in fprobe.stack_trace_save())

    sys.activate_stack_trampoline("perf")
    functions = {}
    exec(
        "def entered(*a): return entry(*a)\ndef calls(): zlib.compress(b'x')", {"entry": entry, "zlib": zlib}, functions
    )
    with fprobe.attach("libz:deflate", entry=functions["entered"]):
        functions["calls"]()
    assert seen[0] == "deflate" and seen[-1] == "_start", seen
    assert not any("ffi" in name or "python_call" in name for name in seen), seen
