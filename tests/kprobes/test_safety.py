"""Where instructions begin (KP-18), which rule refuses a jump (KP-60, KP-61): on hand-assembled functions."""

from __future__ import annotations

import pytest

from kprobes.jump.safety import absorbable, examine, kernel_refusal, own_refusal
from sandbox.x86_64.instruction import decode

AT = 0x40_0000


def function(code: str, pads: tuple[int, ...] = ()):
    return examine(bytes.fromhex(code), AT, tuple(AT + pad for pad in pads))


@pytest.mark.parametrize(
    ("code", "offset", "rule"),
    [
        ("4889f8 4889f0 c3", 0, None),
        ("4889f8 c3", 0, "too short"),
        ("90 90 90 90 90 c3", 2, "too short"),
        ("4889f8 4889f0 06 c3", 0, "undecodable"),
        ("4889f8 4889f0 ffe0", 0, "indirect jump"),
        ("4889f8 4889f0 3effe0", 0, "indirect jump"),
        ("4889f8 4889f0 4889f0 ff25 00000000", 0, "indirect jump"),
        ("4889f8 4889f0 75fb c3", 0, "jump target"),
        ("4889f8 4889f0 4889f0 75fb c3", 0, None),
        ("4889f8 9090 4889f0 75fb c3", 0, "jump target"),
        ("4889f8 4889f0 75f8 c3", 0, None),
        ("4889f8 e800000000 c3", 0, "not boostable"),
        ("0f10c1 4889f0 c3", 0, "not boostable"),
        ("50 58 c3 90 90", 0, None),
        ("4889f8 0f0b 90 c3", 0, "unsupported"),
    ],
)
def test_the_kernels_rules(code, offset, rule):
    """KP-61, the target just behind the five bytes included"""
    refusal = kernel_refusal(function(code), AT + offset)
    assert (refusal and refusal.rule) == rule


def test_landing_pads_are_jump_targets():
    """Section P"""
    refusal = kernel_refusal(function("4889f8 4889f0 c3", pads=(3,)), AT)
    assert refusal is not None
    assert refusal.rule == "jump target"
    assert kernel_refusal(function("4889f8 4889f0 90 90 c3", pads=(0, 6)), AT) is None


def test_what_others_patch_is_reserved():
    refusal = kernel_refusal(function("4889f8 4889f0 c3"), AT, lambda low, high: f"{low - AT}..{high - AT}")
    assert refusal is not None
    assert refusal.reason.endswith("0..6")


@pytest.mark.parametrize(
    ("code", "offset", "rule"),
    [
        ("4889f8 c3", 0, None),
        ("c3", 0, None),
        ("4889f8 4889f0 ffe0", 0, None),
        ("e800000000 75f9 c3", 0, None),
        ("7401 f0 0fb107 c3", 2, "jump target"),
        ("7400 f0 0fb107 c3", 2, None),
        ("e801000000 f0 0fb107 c3", 5, "jump target"),
        ("90 06 c3", 0, "undecodable"),
        ("0f0b c3", 0, "unsupported"),
        ("ff10 c3", 0, None),
        ("ff18 c3", 0, "unsupported"),
    ],
)
def test_our_rules(code, offset, rule):
    """One instruction alone: only a jump into its middle is against it, such as one that skips a lock prefix."""
    whole = bytes.fromhex(code)
    refusal = own_refusal(function(code), decode(whole[offset:], AT + offset))
    assert (refusal and refusal.rule) == rule


@pytest.mark.parametrize(
    ("code", "at", "may"),
    [
        ("90 4889f8 c3", 1, True),
        ("90 4889f8 c3", 5, False),
        ("90 4889f8 75fb c3", 1, False),
        ("90 4889f8 e8f8ffffff c3", 1, False),
        ("90 ffd0 4889f8 c3", 1, False),
        ("90 e800000000 c3", 1, True),
        ("90 0f0b", 1, False),
    ],
)
def test_what_may_be_absorbed(code, at, may):
    """Nothing that something known goes to, and no call that comes back among the bytes of the jump."""
    assert (absorbable(function(code), AT, AT + at) is not None) == may


def test_what_an_exception_lands_at_is_not_absorbed():
    assert absorbable(function("90 4889f8 c3", pads=(1,)), AT, AT + 1) is None


@pytest.mark.parametrize(("code", "sets"), [("fd c3", True), ("9d c3", True), ("f3a4 c3", False), ("fc c3", False)])
def test_who_sets_the_direction_flag_is_known(code, sets):
    assert function(code).sets_direction is sets


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
