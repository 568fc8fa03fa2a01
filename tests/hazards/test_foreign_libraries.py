"""Libraries as they come: indirect functions, another library linked in statically, entries that another tool has patched."""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"  (the decorator fills in what handlers take)

from __future__ import annotations

import ctypes
import logging
import subprocess
from pathlib import Path
from tempfile import mkdtemp

import pytest
from isolation import isolated
from sampled import in_stress

import fprobe
import kprobes
from sandbox.native import i32, u64

CALLS, LENGTH = 1000, 4321
entered = fprobe.Hash(u64, u64, size=4096)
left = fprobe.Hash(u64, u64, size=4096)


@fprobe.native
def enters(fp, ip, ret_ip, regs, data) -> i32:
    entered[regs.di] += 1
    return 0


@fprobe.native
def leaves(fp, ip, ret_ip, regs, data):
    left[regs.ax] += 1


@isolated(timeout=60)
def test_the_calls_of_indirect_functions_are_counted_exactly():
    libc, text = ctypes.CDLL("libc.so.6"), ctypes.create_string_buffer(b"x" * LENGTH)
    copy, address = ctypes.create_string_buffer(LENGTH + 1), ctypes.c_void_p
    memcpy, strlen = libc.memcpy, libc.strlen
    memcpy.argtypes, strlen.argtypes = (address, address, ctypes.c_size_t), (address,)
    memcpy.restype, strlen.restype = address, ctypes.c_size_t
    to, of = ctypes.addressof(copy), ctypes.addressof(text)
    told: list[str] = []
    logging.getLogger("fprobe").addFilter(lambda record: told.append(record.getMessage()) or True)
    with fprobe.attach("libc:memcpy", entry=enters, exit=leaves) as copied:
        assert (copied.functions, copied.counts.missed) == (["memcpy"], 0)
        assert {memcpy(to, of, LENGTH) for _ in range(CALLS)} == {to}
    with fprobe.attach("libc:strlen", entry=enters, exit=leaves) as measured:
        assert (measured.functions, measured.counts.missed) == (["strlen"], 0)
        assert {strlen(of) for _ in range(CALLS)} == {LENGTH}
    assert (entered[to], entered[of], left[to], left[LENGTH]) == (CALLS,) * 4
    assert told == []  # detaching calls both, which is missed, but for no limit
    assert copy.raw[:LENGTH] == b"x" * LENGTH


def _compiled(source: str, *flags: str) -> Path:
    directory = Path(mkdtemp(prefix="foreign-"))
    (directory / "source.c").write_text(source)
    command = ["gcc", "-O2", "-shared", "-fPIC", "source.c", "-o", "libforeign.so", *flags]
    if subprocess.run(command, cwd=directory, capture_output=True).returncode:
        pytest.skip("the compiler cannot build it: no static zlib?")
    return directory / "libforeign.so"


USES_ZLIB = """
#include <string.h>
#include <zlib.h>
long compressed(void) {
    unsigned char out[200]; uLongf size = sizeof out;
    return compress(out, &size, (const Bytef *)"to be, or not to be", 19) ? -1 : (long)size;
}
"""
STATIC = ("-Wl,-Bstatic", "-lz", "-Wl,-Bdynamic", "-Wl,--exclude-libs,ALL")


@isolated(timeout=60)
def _linked_in(path, named):
    library = ctypes.CDLL(path)
    size = library.compressed()
    if named:
        with fprobe.attach("libforeign:deflate", action=fprobe.Count()) as probe:
            assert (library.compressed(), probe.hits > 0) == (size, True)
    else:
        with pytest.raises(OSError, match=r"no function of \[libforeign.so\] matches 'deflate'"):
            fprobe.attach("libforeign:deflate", action=fprobe.Count()).attach()
    with fprobe.attach("libforeign:*", action=fprobe.Stat()) as probe:
        assert library.compressed() == size
    assert probe.hits > 10 and probe.counts.missed == 0


@pytest.mark.parametrize("strip", [False, in_stress(True)])
def test_a_library_that_is_linked_in_statically_is_part_of_what_it_is_linked_into(strip):
    _linked_in(path=str(_compiled(USES_ZLIB, *STATIC, *["-s"] * strip)), named=not strip)


@isolated(timeout=60)
def _hooked(path):
    from sandbox.memory.mappings import allocate_text, write_through_kernel

    library, libc = ctypes.CDLL(path), ctypes.CDLL(None)
    twice, page = ctypes.cast(library.twice, ctypes.c_void_p).value, ctypes.c_size_t(4096)
    assert library.twice(5) == 22
    as_built = ctypes.string_at(twice, 5)
    theirs = allocate_text((twice, twice), 4096, "another tool")
    theirs.write(theirs.base, bytes.fromhex("488d4709c3"))  # lea 9(%rdi), %rax; ret
    jump = b"\xe9" + (theirs.base - twice - 5).to_bytes(4, "little", signed=True)
    libc.mprotect(ctypes.c_void_p(twice & -4096), page, 7)
    ctypes.memmove(twice, jump, len(jump))
    libc.mprotect(ctypes.c_void_p(twice & -4096), page, 5)
    with fprobe.attach("libforeign:twice", action=fprobe.Stat()) as probe:
        assert library.twice(5) == 14
    assert (probe.hits, probe.counts.missed) == (1, 0)
    assert ctypes.string_at(twice, len(jump)) == jump
    assert library.twice(5) == 14
    write_through_kernel(twice, b"\xcc")
    with pytest.raises(OSError, match="begins with a breakpoint of another tool"):
        fprobe.attach("libforeign:twice", action=fprobe.Stat()).attach()
    write_through_kernel(twice, as_built)
    with fprobe.attach("libforeign:twice", action=fprobe.Stat()) as probe:
        assert library.twice(5) == 22
    assert (probe.hits, ctypes.string_at(twice, 5)) == (1, as_built)


def test_an_entry_that_another_tool_leads_elsewhere_still_leads_there():
    """Our jump replaces theirs and takes its copy along; detaching puts back what was found, not what is in the file.

    When the other tool has put back its own, the entry is looked at again: it is neither refused nor a bug of ftrace.
    """
    _hooked(path=str(_compiled("long twice(long x) { return x * 3 + 7; }")))


@isolated(timeout=60)
def _not_the_file(path, way):
    library, file = ctypes.CDLL(path), Path(path)
    if way == "replaced":
        command = ["gcc", "-O2", "-shared", "-fPIC", "-x", "c", "-", "-o", f"{path}.new"]
        subprocess.run(command, input=TWO.replace("long twice", "long other(void) { return 1; } long twice").encode())
        Path(f"{path}.new").rename(file)
    else:
        file.unlink()
    with pytest.raises(OSError, match=f"{path} is not the file any more that was loaded"):
        fprobe.attach("libforeign:hidden").attach()
    with pytest.raises(OSError, match=f"{path} is not the file any more that was loaded"):
        kprobes.register_kprobe(kprobes.kprobe(symbol_name="libforeign:hidden"))
    with fprobe.attach("libforeign:*", action=fprobe.Stat()) as probe:
        assert library.four(5) == 73
        functions = list(probe.targets)
    assert probe.hits > 0 and probe.counts.missed == 0
    named = {name for name in functions if not name.startswith("libforeign.so+0x")}
    assert {"twice", "four"} == named and len(functions) > len(named), functions


@pytest.mark.parametrize("way", ["replaced", "deleted"])
def test_a_library_whose_file_is_another_one_is_known_by_its_unwind_tables_and_exported_names(way):
    """With the symbols of another file, probes would be amid its instructions; those that it exports are in memory."""
    _not_the_file(path=str(_compiled(TWO)), way=way)


TWO = """
static __attribute__((noinline)) long hidden(long x) { return x * 3; }
__attribute__((noinline)) long twice(long x) { return hidden(x) + 7; }
long four(long x) { return twice(twice(x)); }
"""

VARIABLE_ROOM = """
long needs_room(long size);
__asm__(
    ".text; .globl needs_room; .type needs_room, @function; needs_room: .cfi_startproc; endbr64;"
    "push %rbp; .cfi_def_cfa_offset 16; .cfi_offset %rbp, -16; mov %rsp, %rbp; .cfi_def_cfa_register %rbp;"
    "mov %rdi, %rsi; mov %rsp, %rax; lea 15(%rdi), %rdx; and $-16, %rdx; sub %rdx, %rax; and $-32, %rax;"
    "mov %rax, %rsp; mov %rax, %rdi; call in_room; leave; .cfi_def_cfa %rsp, 8; ret; .cfi_endproc;"
    ".size needs_room, .-needs_room");
__attribute__((noipa)) long in_room(char *room, long size) {
    long sum = 0;
    for (long i = 0; i < size; i++) room[i] = 1;
    if (size > 100) sum = needs_room(size - 100);
    for (long i = 0; i < size; i++) sum += room[i];
    return sum;
}
"""
"""The stack pointer is set from a register, as clang does for a buffer of variable size."""


@isolated(timeout=60)
def _room_is_made(path):
    library = ctypes.CDLL(path)
    library.needs_room.restype = ctypes.c_long
    sum_of = {size: sum(range(size, 0, -100)) for size in (1, 99, 100, 5050)}
    with fprobe.attach("libforeign:needs_room", entry=enters, exit=leaves, nr_maxactive=100) as probe:
        assert [library.needs_room(ctypes.c_long(size)) for size in sum_of] == list(sum_of.values())
        assert (dict(probe.skipped), probe.hits, probe.counts.missed) == ({}, 3 + 51, 0)
    assert [left[result] for result in sum_of.values()] == [1, 1, 1, 1]


def test_returns_of_a_function_that_makes_room_of_a_variable_size_are_hooked():
    _room_is_made(path=str(_compiled(VARIABLE_ROOM)))
