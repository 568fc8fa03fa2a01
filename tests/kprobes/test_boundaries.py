"""Where instructions begin (KP-18)."""

from __future__ import annotations

import pytest

from kprobes.jump.safety import examine

AT = 0x40_0000


def test_every_instruction_is_found():
    function = examine(bytes.fromhex("55 4889e5 48b80102030405060708 c3"), AT)
    assert function.starts == (AT, AT + 1, AT + 4, AT + 14)
    assert function.stopped == function.end == AT + 15


@pytest.mark.parametrize(
    ("offset", "expected"), [(0, True), (1, True), (2, False), (4, False), (6, False), (-1, False), (9, False)]
)
def test_undecodable_bytes_end_what_is_known(offset, expected):
    """KP-18: they make everything behind them, and themselves, no boundary."""
    code = bytes.fromhex("55 4889e5 06 90 c3")
    assert bool(examine(code, AT).instruction_at(AT + offset)) is expected


def test_where_decoding_stops_is_known():
    assert examine(bytes.fromhex("55 06 c3"), AT).stopped == AT + 1


def test_an_instruction_beyond_the_end_is_not_one_of_the_function():
    function = examine(bytes.fromhex("55 48b80102030405060708")[:5], AT)
    assert not function.instruction_at(AT + 1)
    assert function.stopped == AT + 1
