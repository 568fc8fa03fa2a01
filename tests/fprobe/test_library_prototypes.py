"""PE-4.12 for code of C: names, fields and types from DWARF, in programs and in shared libraries."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest
from isolation import isolated

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="C is compiled")

SOURCE = """
#include <stdlib.h>
enum __attribute__((packed)) colour { RED = 1, GREEN = 200 };
struct point { int x; short y; unsigned low : 3, high : 5; enum colour colour; const char *name; struct point *next; };
__attribute__((cold, noreturn)) void fatal(void) { abort(); }
int work(struct point *p, int n) { if (n < 0) { p->x = 3; p->y = 4; fatal(); } return p->x + n; }
"""
ARGUMENTS = "$arg* y=p->y high=p->high colour=p->colour name=p->name:string third=p->next->x"
VALUES = 'n=5 y=-3 high=21 colour=200 name="hello" third=9'


def check(function: str, call: Callable[[int, int], Any]) -> None:
    """The events of an entry and a return show what the source calls it."""
    import ctypes

    from fprobe.tracefs import tracefs

    class Point(ctypes.Structure):
        _fields_ = (
            ("x", ctypes.c_int), ("y", ctypes.c_short), ("bits", ctypes.c_ubyte), ("colour", ctypes.c_ubyte),
            ("name", ctypes.c_char_p), ("next", ctypes.c_void_p),
        )  # fmt: skip

    other = Point(9)
    point = Point(77, -3, 21 << 3 | 1, 200, b"hello", ctypes.addressof(other))
    tracefs.write("kprobe_events", f"p:in {function} {ARGUMENTS}\nr:out {function} n $retval\n")
    assert tracefs.read("kprobe_events").splitlines()[0].startswith(f"p:kprobes/in {function} p=p n=n y=p->y ")
    tracefs.write("events/kprobes/enable", "1")
    assert call(ctypes.addressof(point), 5) == 82
    first, second = (line.partition(") ")[2] for line in tracefs.read("trace").splitlines() if line[0] != "#")
    assert first.split(" ", 1)[1] == VALUES, first
    assert second == "n=5 arg2=82"


@isolated
def test_pe4_12_a_function_of_a_program_in_c_that_has_a_cold_part() -> None:
    """Its entry in the debug information has ranges, no single address."""
    import tempfile
    from pathlib import Path

    import sandbox

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "cold.c")
        path.write_text(SOURCE)
        module = sandbox.load(path, cflags=["-O2"])
        check("work", module["work"])


@isolated
def test_pe4_12_a_function_of_a_library_with_debug_information() -> None:
    import ctypes
    import subprocess
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/libpoints.so"
        compile_ = ["cc", "-O2", "-g", "-shared", "-fPIC", "-x", "c", "-", "-o", path]
        subprocess.run(compile_, input=SOURCE.encode(), check=True)
        work = ctypes.CDLL(path).work
        work.argtypes = (ctypes.c_void_p, ctypes.c_int)
        check("libpoints:work", work)


@isolated
def test_pe4_12_the_debug_information_may_be_in_a_file_of_its_own() -> None:
    import ctypes
    import shutil
    import subprocess
    import sys
    import tempfile

    if shutil.which("objcopy") is None:
        sys.exit(0)
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/libpoints.so"
        compile_ = ["cc", "-O2", "-g", "-shared", "-fPIC", "-x", "c", "-", "-o", path]
        subprocess.run(compile_, input=SOURCE.encode(), check=True)
        subprocess.run(["objcopy", "--only-keep-debug", path, f"{path}.debug"], check=True)
        subprocess.run(
            ["objcopy", "--strip-debug", f"--add-gnu-debuglink={path}.debug", path], check=True, cwd=directory
        )
        work = ctypes.CDLL(path).work
        work.argtypes = (ctypes.c_void_p, ctypes.c_int)
        check("libpoints:work", work)


@isolated
def test_pe4_12_without_debug_information_a_library_has_no_names() -> None:
    import ctypes
    import errno
    import subprocess
    import tempfile

    from fprobe.tracefs import tracefs

    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/libpoints.so"
        compile_ = ["cc", "-O2", "-shared", "-fPIC", "-x", "c", "-", "-o", path]
        subprocess.run(compile_, input=SOURCE.encode(), check=True)
        library = ctypes.CDLL(path)
        try:
            tracefs.write("kprobe_events", "p:in libpoints:work p")
        except OSError as error:
            assert error.errno == errno.ENOENT
        else:
            raise AssertionError("a name of nothing was accepted")
        tracefs.write("kprobe_events", "p:in libpoints:work $arg2")
        assert tracefs.read("kprobe_events") == "p:kprobes/in libpoints:work arg1=$arg2\n"
        assert library.work
