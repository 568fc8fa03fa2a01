"""Where instructions begin (KP-18)."""

from __future__ import annotations

import pytest

from kprobes.boundaries import boundaries
from kprobes.jump.safety import examine

AT = 0x40_0000


def reader(code: bytes):
    return lambda address, size: code[address - AT : address - AT + size]


def test_every_instruction_is_found():
    code = bytes.fromhex("55 4889e5 48b80102030405060708 c3")
    assert boundaries(reader(code), AT, AT + len(code)) == [AT, AT + 1, AT + 4, AT + 14]


def test_instructions_across_a_chunk_are_read_whole():
    """Chunks are read; an instruction that one ends in the middle of is no gap."""
    code = bytes.fromhex("48b80102030405060708") * 3000
    found = boundaries(reader(code), AT, AT + len(code))
    assert found == list(range(AT, AT + len(code), 10))


@pytest.mark.parametrize(
    ("offset", "expected"), [(0, True), (1, True), (2, False), (4, False), (6, False), (-1, False), (9, False)]
)
def test_undecodable_bytes_end_what_is_known(offset, expected):
    """KP-18: they make everything behind them, and themselves, no boundary."""
    code = bytes.fromhex("55 4889e5 06 90 c3")
    assert bool(examine(code, AT).instruction_at(AT + offset)) is expected


def test_where_decoding_stops_is_named():
    code = bytes.fromhex("55 06 c3")
    with pytest.raises(ValueError, match=f"{AT + 1:#x}"):
        boundaries(reader(code), AT, AT + len(code))


def test_an_instruction_beyond_the_end_is_not_one_of_the_function():
    code = bytes.fromhex("55 48b80102030405060708")
    assert not examine(code[:5], AT).instruction_at(AT + 1)
    with pytest.raises(ValueError, match=f"{AT + 1:#x}"):
        boundaries(reader(code), AT, AT + 5)
