"""Code that JIT compilers declare in the perf map of this process: `perf:NAME`."""

from __future__ import annotations

import atexit
import ctypes
import os
from pathlib import Path

import pytest
from isolation import isolated

TIMES_3_PLUS_7 = bytes.fromhex("488d047f4883c007c3")  # lea (%rdi,%rdi,2),%rax; add $7,%rax; ret
PAGE = 4096


class Compiler:
    """Places functions 64 bytes apart in memory of its own, and declares each by a line."""

    def __init__(self, permissions=5, flags=0x22):
        self.libc = ctypes.CDLL(None)
        self.libc.mmap.restype = ctypes.c_void_p
        self.libc.mmap.argtypes = (ctypes.c_void_p, *[ctypes.c_size_t] * 5)
        self.base = self.libc.mmap(0, PAGE, 3, flags, 2**64 - 1, 0)
        ctypes.memmove(self.base, (TIMES_3_PLUS_7.ljust(64, b"\xcc")) * (PAGE // 64), PAGE)
        self.protect(permissions)
        self.map = Path(f"/tmp/perf-{os.getpid()}.map")
        self.map.unlink(missing_ok=True)  # of an earlier process of this number
        atexit.register(self.map.unlink, missing_ok=True)

    def protect(self, permissions):
        assert self.libc.mprotect(ctypes.c_void_p(self.base), PAGE, permissions) == 0

    def place(self, number, name, end="\n"):
        address = self.base + number * 64
        with self.map.open("a") as stream:
            stream.write(f"{address:x} {len(TIMES_3_PLUS_7):x} {name}{end}")
        return ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_long)(address)

    def free(self):
        self.libc.munmap(ctypes.c_void_p(self.base), PAGE)


def _names():
    from sandbox.images import compiled

    return [function.name for image in compiled.source.images() for function in image.functions]


@isolated(timeout=60)
def _probes():
    import fprobe
    import kprobes

    compiler = Compiler()
    first = compiler.place(0, "py::first:/a file.js:1")
    compiler.place(1, "second")
    called = fprobe.attach("perf:py::first*", action=fprobe.Stat()).attach()
    met = kprobes.attach("perf:second", action=kprobes.Count()).attach()
    third = compiler.place(2, "third")  # on a page that is probed already
    returned = kprobes.attach_return("perf:third", action=kprobes.Count()).attach()
    assert (first(5), third(0)) == (22, 7)
    assert (called.hits, called.counts.missed, met.hits, returned.hits) == (1, 0, 0, 1)
    assert called.functions == ["py::first:/a file.js:1"]
    for attachment in (called, met, returned):
        attachment.detach()
    assert ctypes.string_at(compiler.base, 9) == TIMES_3_PLUS_7
    assert (first(5), third(0)) == (22, 7)


def test_declared_functions_are_probed():
    _probes()


@isolated(timeout=60)
def _gone():
    import logging

    import fprobe
    import kprobes

    said = []
    logging.getLogger("ftrace").addHandler(logging.Handler())
    logging.getLogger("ftrace").handlers[-1].emit = lambda record: said.append(record.getMessage())
    compiler = Compiler()
    function = compiler.place(0, "goes")
    called = fprobe.attach("perf:goes", action=fprobe.Stat()).attach()
    met = kprobes.attach("perf:goes", action=kprobes.Count()).attach()
    assert function(5) == 22
    compiler.free()
    met.detach()
    called.detach()
    assert met.p.flags & kprobes.KPROBE_FLAG_GONE
    assert len(said) == 1 and "[perf]" in said[0] and "unmapped while it was probed" in said[0]
    assert (called.hits, met.hits) == (1, 1)
    why = f"no other compiler's code that is mapped executable is declared in {compiler.map}"
    with pytest.raises(OSError, match=why):
        fprobe.attach("perf:goes", action=fprobe.Stat()).attach()
    with pytest.raises(LookupError, match=why):
        kprobes.attach("perf:goes", action=kprobes.Count()).attach()


@pytest.mark.stress
def test_code_that_goes_takes_its_probes_with_it():
    """HAZARDS 7: nothing reads or writes text that is not there any more."""
    _gone()


@isolated(timeout=60)
def _refused():
    import fprobe

    writable = Compiler(permissions=7)
    function = writable.place(0, "writable")
    with pytest.raises(OSError, match="is writable; it can be probed once its compiler has made it read-only"):
        fprobe.attach("perf:writable", action=fprobe.Count()).attach()
    writable.protect(5)
    with fprobe.attach("perf:writable", action=fprobe.Count()) as probe:
        assert function(5) == 22
    assert probe.hits == 1
    Compiler(flags=0x21).place(0, "shared")
    with pytest.raises(OSError, match="is shared memory: its compiler may write there at another address"):
        fprobe.attach("perf:shared", action=fprobe.Count()).attach()


@pytest.mark.stress
def test_code_that_its_compiler_may_still_write_is_refused():
    """The pages that take the place of the compiler's are not writable: it would die of its next write."""
    _refused()


@isolated(timeout=60)
def _lines():
    import fprobe
    import sandbox

    module = sandbox.load("define i64 @own(i64 %a) { ret i64 %a }", name="own")
    with fprobe.attach("own", entry=lambda *_: 0):
        assert module["own"](3) == 3
        assert _names() == []  # our own lines, for modules and stubs
    compiler = Compiler()
    libc = ctypes.cast(compiler.libc.labs, ctypes.c_void_p).value
    with compiler.map.open("a") as stream:
        stream.write(f"no line\n10\n-5 5 negative\n1000 10 unmapped\n{libc:x} 5 labs\n{compiler.base:x} 0 empty\n")
    assert _names() == []
    compiler.place(0, "old")
    compiler.place(1, "half", end="")
    assert _names() == ["old"]
    with compiler.map.open("a") as stream:
        stream.write(" written\n")
    compiler.place(0, "new")
    assert _names() == ["new", "half written"]


def test_lines_that_are_ours_or_wrong_are_passed_over_and_the_last_one_counts():
    _lines()


@isolated(timeout=60)
def _files(kind):
    import os
    from pathlib import Path

    compiler = Compiler()
    if kind == "link":
        elsewhere = Path(f"/tmp/perf-{os.getpid()}.elsewhere")
        compiler.map.symlink_to(elsewhere)
    elif kind == "pipe":
        os.mkfifo(compiler.map)
    try:
        if kind != "pipe":
            compiler.place(0, "theirs")
        if kind == "owner":
            os.chown(compiler.map, 12345, -1)
        if kind == "stale":
            os.utime(compiler.map, (1, 1))
        assert _names() == []
    finally:
        compiler.map.unlink()
        if kind == "link":
            elsewhere.unlink()


@pytest.mark.parametrize(
    "kind",
    [
        "link",
        "pipe",
        "stale",
        pytest.param("owner", marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")),
    ],
)
def test_a_map_that_may_be_another_users_or_another_process_is_not_read(kind):
    """The name is predictable and the directory is writable by all."""
    _files(kind=kind)


@isolated(timeout=60)
def _forked():
    import os

    import fprobe

    compiler = Compiler()
    function = compiler.place(0, "inherited")
    with fprobe.attach("perf:inherited", action=fprobe.Stat()) as probe:
        function(1)
        child = os.fork()
        if not child:
            function(5)
            same = _names() == ["inherited"] and probe.hits == 2
            probe.detach()
            os._exit(0 if same and function(5) == 22 else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert probe.hits == 1


def test_a_forked_child_keeps_what_its_parent_had_declared():
    _forked()
