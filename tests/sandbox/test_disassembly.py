"""Machine code as text."""

from __future__ import annotations

import pytest

from sandbox import load, symbol_table
from sandbox.symbols.disassembly import disassemble, listing

NOP, JUMP = bytes.fromhex("0f1f440000"), bytes.fromhex("e9fb0f0000")


def names(address: int) -> str | None:
    return {0x1020: "callee+0x0/0x10 [demo]", 0x2000: "stub of f", 0x3000: "jiffies+0x0/0x8 [demo]"}.get(address)


def texts(code: str, address: int = 0x1000, stubs: tuple[int, ...] = ()) -> list[tuple[str, str]]:
    return [(line.text, line.note) for line in disassemble(bytes.fromhex(code), address, names, stubs)]


@pytest.mark.parametrize(
    ("code", "text", "note"),
    [
        ("e81b000000", "call 0x1020", "callee+0x0/0x10 [demo]"),
        ("eb1e", "jmp 0x1020", "callee+0x0/0x10 [demo]"),
        ("0f841a000000", "je 0x1020", "callee+0x0/0x10 [demo]"),
        ("488b05f91f0000", "mov rax, qword ptr [rip + 0x1ff9]", "jiffies+0x0/0x8 [demo]"),
        ("c605f91f000001", "mov byte ptr [rip + 0x1ff9], 1", "jiffies+0x0/0x8 [demo]"),
        ("e800000000", "call 0x1005", ""),
        ("ffd0", "call rax", ""),
        ("b820100000", "mov eax, 0x1020", ""),
        ("c3", "ret", ""),
    ],
)
def test_what_an_instruction_refers_to_is_named(code, text, note):
    assert texts(code) == [(text, note)]


def test_memory_behind_the_instruction():
    assert texts("488b05f9dfffff", 0x5000) == [("mov rax, qword ptr [rip - 0x2007]", "jiffies+0x0/0x8 [demo]")]


def test_a_stub_is_marked_whatever_it_holds():
    for stub, text, note in (
        (NOP, "nop dword ptr [rax + rax]", ""),
        (JUMP, "jmp 0x2000", "stub of f"),
        (b"\xcc" + JUMP[1:], "int3 ...", ""),
    ):
        lines = disassemble(b"\x55" + b"\x90" * 3 + stub + b"\xc3", 0x1000 - 4, names, [0x1000])
        assert [line.is_stub for line in lines] == [False] * 4 + [True, False]
        marked = lines[4]
        assert (marked.address, marked.code, marked.text, marked.note) == (0x1000, stub, text, note)


def test_stubs_elsewhere_do_not_matter():
    assert texts("90c3", stubs=(0xFFF, 0x1002, 0x5000)) == [("nop", ""), ("ret", "")]


def test_bytes_that_are_no_instruction():
    assert texts("06 90 0f") == [(".byte 0x06", ""), ("nop", ""), (".byte 0x0f", "")]


def test_every_byte_is_in_one_line():
    code = bytes(range(256)) * 2
    lines = disassemble(code, 0x1000, names, [0x1010, 0x1100])
    assert b"".join(line.code for line in lines) == code
    assert [line.address for line in lines] == [
        0x1000 + sum(len(line.code) for line in lines[:i]) for i in range(len(lines))
    ]


def test_a_listing():
    code = JUMP + bytes.fromhex("e816000000") + bytes.fromhex("48b80102030405060708") + b"\xc3"
    assert list(listing(disassemble(code, 0x1000, names, [0x1000]), 0x1000)) == [
        "=> 0x1000 +0x0    e9 fb 0f 00 00                   jmp 0x2000  <stub of f>",
        "   0x1005 +0x5    e8 16 00 00 00                   call 0x1020  <callee+0x0/0x10 [demo]>",
        "   0x100a +0xa    48 b8 01 02 03 04 05 06 07 08    movabs rax, 0x807060504030201",
        "   0x1014 +0x14   c3                               ret",
    ]


def test_a_loaded_function():
    program = load(
        """
        @counter = internal global i64 0
        define void @bump() { store i64 1, ptr @counter ret void }
        define void @f() { call void @bump() ret void }
        """,
        name="listed",
    )

    def describe(address):
        location = symbol_table.locate(address)
        return str(location) if location else None

    def lines(name):
        symbol = program.symbol(name)
        code = program.texts[0].read(symbol.address, symbol.size)
        return disassemble(code, symbol.address, describe, program.sites)

    assert next(line.is_stub for line in lines("f"))
    assert [line.note.partition("+")[0] for line in lines("f") if line.text.startswith(("call", "jmp"))] == ["bump"]
    assert "counter+0x0/0x8 [listed]" in [line.note for line in lines("bump")]
    program.unload()
