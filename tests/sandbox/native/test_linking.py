"""Objects that are linked without LLVM."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import pytest
from isolation import isolated

from sandbox.elf.unwinder import find_fde
from sandbox.memory import pages
from sandbox.native.back.compile import compile_unit
from sandbox.native.linking import LinkedObject, of_process
from sandbox.native.unit import Unit

_MAP_32BIT = 0x40
TEXT = """
    .globl calls, reads, own, counter, answer
calls: call outside
    add $1, %eax
    ret
reads: mov outside@GOTPCREL(%rip), %rax
    ret
own: mov answer@GOTPCREL(%rip), %rax
    mov (%rax), %eax
    add counter(%rip), %eax
    incl counter(%rip)
    ret
    .section .rodata
answer: .long 40
    .data
counter: .long 2
"""
OBJECT = compile_unit(Unit("linked", assembly=TEXT))


def call(linked: LinkedObject, name: str) -> int:
    return int(ctypes.CFUNCTYPE(ctypes.c_uint64)(linked.addresses[name])())


@pytest.fixture
def outside():
    """A function that returns 41, farther away than a call reaches."""
    memory = mmap.mmap(
        -1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_32BIT, mmap.PROT_READ | mmap.PROT_WRITE
    )
    memory.write(bytes.fromhex("b829000000 c3"))
    first = ctypes.c_char.from_buffer(memory)
    pages.mprotect(ctypes.addressof(first), mmap.PAGESIZE, pages.PROT_READ | pages.PROT_EXEC)
    yield ctypes.addressof(first)


def test_a_symbol_that_is_far_away_is_called_and_read(outside):
    linked = LinkedObject("linked", OBJECT, {"outside": outside}.get)
    assert linked.addresses["calls"] - outside > 1 << 31
    assert (call(linked, "calls"), call(linked, "reads")) == (42, outside)
    assert [call(linked, "own"), call(linked, "own")] == [42, 43]
    linked.close()


def test_a_symbol_that_nobody_has_is_named():
    with pytest.raises(LookupError, match=r"^linked refers to outside, which is not defined in this process$"):
        LinkedObject("linked", OBJECT, of_process)
    assert of_process("malloc") and of_process("surely_absent") is None


def test_code_cannot_be_written_and_what_is_closed_is_unmapped(outside):
    linked = LinkedObject("linked", OBJECT, {"outside": outside}.get)

    def rights(address: int) -> str:
        for line in Path("/proc/self/maps").read_text().splitlines():
            start, end = (int(each, 16) for each in line.split()[0].split("-"))
            if start <= address < end:
                return line.split()[1]
        return ""

    places = [linked.addresses[name] for name in ("calls", "answer", "counter")]
    assert list(map(rights, places)) == ["r-xp", "r--p", "rw-p"]
    linked.close()
    assert list(map(rights, places)) == ["", "", ""]


@isolated
def test_unwinders_know_the_functions_of_the_runtime() -> None:
    from ftrace.core.runtime import runtime

    image = runtime().image
    start = next(symbol.address for symbol in image.symbols if symbol.name == "signal_dispatch")
    found = find_fde(start + 1)
    assert found and found[0] == start
