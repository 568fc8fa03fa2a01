"""Code of compilers that are not LLVM's: another library with a GDB JIT interface of its own."""

from __future__ import annotations

import ctypes
import subprocess

import pytest
from isolation import isolated
from sampled import in_stress

SOURCE = """
#include <stdint.h>
#include <stdlib.h>
struct entry { struct entry *next, *previous; const char *image; uint64_t size; };
struct { uint32_t version, action; struct entry *relevant, *first; } __jit_debug_descriptor = { 1, 0, 0, 0 };
__attribute__((noinline)) void __jit_debug_register_code(void) { __asm__ volatile("" ::: "memory"); }

struct entry *show(const char *image, uint64_t size) {
    struct entry *made = calloc(1, sizeof *made);
    made->image = image, made->size = size, made->next = __jit_debug_descriptor.first;
    if (made->next) made->next->previous = made;
    __jit_debug_descriptor.first = __jit_debug_descriptor.relevant = made;
    __jit_debug_descriptor.action = 1;
    __jit_debug_register_code();
    return made;
}
void withdraw(struct entry *it) {
    if (it->previous) it->previous->next = it->next; else __jit_debug_descriptor.first = it->next;
    if (it->next) it->next->previous = it->previous;
    __jit_debug_descriptor.relevant = it;
    __jit_debug_descriptor.action = 2;
    __jit_debug_register_code();
}
"""
FUNCTION = "long compiled_elsewhere(long x) { return x * 3 + 7; }"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A directory with the compiler's library, and an object that it might have made."""
    where = tmp_path_factory.mktemp("jit")
    for name, source, flags in (("libjit.so", SOURCE, ("-shared", "-fPIC")), ("made.o", FUNCTION, ("-c",))):
        (where / f"{name}.c").write_text(source)
        subprocess.run(["gcc", "-O2", *flags, f"{name}.c", "-o", name], cwd=where, check=True)
    return str(where)


@isolated(cold=True)  # the process has made no other code
def test_the_symbols_of_our_own_objects_are_not_read():
    """Those of a program with 50,000 functions took half a second."""
    import sandbox
    from sandbox.images import compiled
    from sandbox.images import jit_objects as objects

    read, original = [], objects.read_object
    objects.read_object = lambda entry, data: read.append(entry) or original(entry, data)
    sandbox.load("define i32 @f(i32 %x) { ret i32 %x }\ndefine i32 @g(i32 %x) { ret i32 %x }", name="program")
    assert (compiled.source.images(), read) == ([], [])


class Compiler:
    """Places the object in memory of its own, shows it to debuggers, and takes both back."""

    def __init__(self, where):
        self.library = ctypes.CDLL(f"{where}/libjit.so")
        self.library.show.restype = ctypes.c_void_p
        self.libc = ctypes.CDLL(None)
        self.libc.mmap.restype = ctypes.c_void_p
        self.libc.mmap.argtypes = (ctypes.c_void_p, *[ctypes.c_size_t] * 5)
        with open(f"{where}/made.o", "rb") as file:  # noqa: PTH123
            self.object = file.read()

    def place(self, at=0):
        from sandbox.elf import tables as elf

        self.base = self.libc.mmap(at, 4096, 7, 0x22, 0, 0)
        file = elf.ElfFile(self.object)
        text = file.sections_named(".text")[0]
        ctypes.memmove(self.base, bytes(file.contents(text)), file.sections[text].size)
        self.libc.mprotect(ctypes.c_void_p(self.base), 4096, 5)
        image = elf.placed(self.object, {text: self.base})
        self.image = ctypes.create_string_buffer(image, len(image))
        self.entry = self.library.show(self.image, ctypes.c_uint64(len(image)))
        return ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_long)(self.base)

    def vanish(self):
        """Without notice; nothing else is put in the place."""
        assert self.libc.mmap(self.base, 4096, 0, 0x32, 0, 0) == self.base

    def free(self):
        self.library.withdraw(ctypes.c_void_p(self.entry))
        self.libc.munmap(ctypes.c_void_p(self.base), 4096)


@isolated(timeout=120)
def _probe(where):
    import fprobe
    import kprobes

    compiler = Compiler(where)
    base = 0
    for _ in range(3):
        function = compiler.place(base)
        base = compiler.base
        called = fprobe.attach("jit:compiled_else*", action=fprobe.Stat()).attach()
        met = kprobes.attach("jit:compiled_elsewhere", action=kprobes.Count()).attach()
        returned = kprobes.attach_return("jit:compiled_elsewhere", action=kprobes.Count()).attach()
        assert (function(5), function(0)) == (22, 7)
        assert (called.hits, called.counts.missed, met.hits, returned.hits) == (2, 0, 2, 2)
        assert called.functions == ["compiled_elsewhere"]
        compiler.free()
        assert met.p.flags & returned.rp.kp.flags & kprobes.KPROBE_FLAG_GONE
        for attachment in (called, met, returned):
            attachment.detach()
    with fprobe.attach("jit:compiled_elsewhere", action=fprobe.Count()) as called:
        assert compiler.place(base)(5) == 22
    assert called.hits == 0  # what this compiler places later is not followed


def test_probes_are_placed_and_gone_with_the_code(built):
    _probe(where=built)


@isolated(timeout=60)
def _unmapped(where):
    import logging

    import fprobe

    said = []
    logging.getLogger("ftrace").addHandler(logging.Handler())
    logging.getLogger("ftrace").handlers[-1].emit = lambda record: said.append(record.getMessage())
    compiler = Compiler(where)
    function = compiler.place()
    first = fprobe.attach("jit:compiled_elsewhere", action=fprobe.Stat()).attach()
    second = fprobe.attach("jit:compiled_elsewhere", exit=lambda *_: None).attach()
    assert function(5) == 22
    compiler.libc.munmap(ctypes.c_void_p(compiler.base), 4096)
    first.detach()
    assert len(said) == 1 and "[jit]" in said[0] and "unmapped while it was probed" in said[0]
    second.detach()
    assert (first.hits, second.hits, len(said)) == (1, 1, 1)
    assert compiler.place(compiler.base)(5) == 22  # the addresses may be used again
    with fprobe.attach("jit:compiled_elsewhere", action=fprobe.Stat()) as probe:
        assert function(5) == 22
    assert probe.hits == 1


@pytest.mark.stress
def test_code_that_is_unmapped_without_notice_is_reported_when_probes_are_detached(built):
    """HAZARDS 7: dropping an engine unmaps its code at once."""
    _unmapped(where=built)


def _places(kprobes, optimized):
    """A kprobe and a kretprobe on the function, as jumps or as breakpoints."""
    kprobes.set_kprobes_optimization(int(optimized))
    met = kprobes.attach("jit:compiled_elsewhere", action=kprobes.Count()).attach()
    inside = kprobes.attach("jit:compiled_elsewhere+5", action=kprobes.Count()).attach()
    returned = kprobes.attach_return("jit:compiled_elsewhere", action=kprobes.Count()).attach()
    kprobes.wait_for_kprobe_optimizer()
    return met, inside, returned


@isolated(timeout=60)
def _unmapped_under_kprobes(where, optimized, leave):
    import logging
    import time

    import kprobes

    said = []
    logging.getLogger("kprobes").addHandler(logging.Handler())
    logging.getLogger("kprobes").handlers[-1].emit = lambda record: said.append(record.getMessage())
    compiler = Compiler(where)
    function = compiler.place()
    attached = _places(kprobes, optimized)
    assert function(5) == 22
    compiler.vanish()
    if leave == "optimizer":
        kprobes.set_kprobes_optimization(int(not optimized))
        time.sleep(0.1)
    if leave == "disable":
        kprobes.disable_kprobe(attached[1].p)
    if leave == "exit":
        return
    for attachment in attached:
        attachment.detach()
    assert len(said) == 1 and "[jit]" in said[0] and "unmapped while it was probed" in said[0]
    assert [attachment.hits for attachment in attached] == [1, 1, 1]
    assert attached[1].p.flags & kprobes.KPROBE_FLAG_GONE
    compiler.libc.munmap(ctypes.c_void_p(compiler.base), 4096)
    assert compiler.place(compiler.base)(5) == 22
    again = _places(kprobes, optimized)
    assert function(5) == 22
    assert [attachment.hits for attachment in again] == [1, 1, 1]


@pytest.mark.parametrize(
    ("optimized", "leave"),
    [
        (optimized, leave)
        if (optimized, leave) in ((True, "detach"), (False, "exit"))
        else in_stress((optimized, leave))
        for leave in ("detach", "disable", "optimizer", "exit")
        for optimized in (False, True)
    ],
)
def test_kprobes_on_code_that_is_unmapped_without_notice_are_gone(built, optimized, leave):
    """HAZARDS 7: nothing reads or writes text that is not there any more, neither detaching nor the optimiser."""
    _unmapped_under_kprobes(where=built, optimized=optimized, leave=leave)


@isolated(timeout=60)
def _unmapped_while_listed(where):
    import errno

    import fprobe
    import kprobes

    compiler = Compiler(where)
    compiler.place()
    compiler.vanish()
    with pytest.raises(OSError) as raised:
        kprobes.register_kprobe(kprobes.kprobe(symbol_name="jit:compiled_elsewhere", pre_handler=lambda *_: 0))
    assert raised.value.errno == errno.ENOENT and "compiled_elsewhere" in str(raised.value)
    with pytest.raises(OSError) as raised:
        fprobe.register_fprobe(fprobe.fprobe(lambda *_: 0), "jit:compiled_elsewhere", None)
    assert raised.value.errno == errno.EINVAL, raised.value


@pytest.mark.stress
def test_code_that_is_listed_but_not_mapped_is_refused(built):
    _unmapped_while_listed(where=built)


@isolated(timeout=60)
def _writable(where):
    import fprobe

    compiler = Compiler(where)
    function = compiler.place()
    compiler.libc.mprotect(ctypes.c_void_p(compiler.base), 4096, 7)
    with pytest.raises(OSError, match="is writable; it can be probed once its compiler has made it read-only"):
        fprobe.register_fprobe(fprobe.fprobe(lambda *_: 0), "jit:compiled_elsewhere", None)
    compiler.libc.mprotect(ctypes.c_void_p(compiler.base), 4096, 5)
    with fprobe.attach("jit:compiled_elsewhere", action=fprobe.Count()) as probe:
        assert function(5) == 22
    assert probe.hits == 1


def test_code_that_its_compiler_may_still_write_is_refused(built):
    """The pages that take the place of the compiler's are not writable: it would die of its next write."""
    _writable(where=built)


@isolated(timeout=60)
def _garbage(where):
    from sandbox.symbols import other_jits

    compiler = Compiler(where)
    compiler.place()
    junk = ctypes.create_string_buffer(b"\x7fELF, and then nothing of the kind")
    compiler.library.show(junk, ctypes.c_uint64(len(junk)))
    from sandbox.images import compiled

    names = [function.name for image in compiled.source.images() for function in image.functions]
    assert names == ["compiled_elsewhere"]
    compiler.library.show(ctypes.c_void_p(8), ctypes.c_uint64(64))
    assert compiled.source.images() == [] and other_jits.listed() == {}


def test_a_list_that_cannot_be_read_is_passed_over(built):
    _garbage(where=built)
