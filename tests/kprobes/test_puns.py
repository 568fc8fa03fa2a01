"""Punned jumps: the bytes that are written, with those that are there, lead where they should."""

from __future__ import annotations

import itertools
import random

import pytest
from isolation import isolated

from kprobes.breakpoint.patching import keep_open, patching
from sandbox.memory.address_space import AddressSpace
from sandbox.memory.landings import FAR_SIZE, LandingSpace, _run
from sandbox.memory.mappings import PAGE
from sandbox.x86_64.encoding import INT3
from sandbox.x86_64.instruction import Flow, decode
from sandbox.x86_64.puns import jump_bytes, wider_windows, windows

AT = 0x7F12_3456_7000


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_a_jump_leads_to_every_address_of_its_windows(length):
    rng = random.Random(length)
    for _ in range(50):
        following = rng.randbytes(4)
        found = windows(AT, length, following)
        assert [w.high - w.low for w in found] == [256 ** (length - 1 - p) for p in range(length)]
        for window in found:
            for target in {window.low, window.high - 1, rng.randrange(window.low, window.high)}:
                code = jump_bytes(AT, length, window.prefixes, target)
                assert len(code) == length
                insn = decode(code + following, AT)
                assert (insn.flow, insn.target) == (Flow.JUMP, target)


@pytest.mark.parametrize("lengths", [(1, 1, 1, 1, 1), (1, 4), (2, 3), (3, 3), (4, 7), (1, 2, 1), (2, 2)])
def test_absorbed_instructions_begin_with_a_breakpoint(lengths):
    """Whoever stands at one, or jumps there, is led on by a trap."""
    following = bytes.fromhex("11223344")
    found = list(wider_windows(AT, lengths, following))
    assert found
    starts = [start for start in itertools.accumulate(lengths) if start < min(5, sum(lengths))]
    for window in found[:200]:
        code = jump_bytes(AT, sum(lengths), 0, window.high - 1)
        assert all(code[start] == INT3 for start in starts)
        insn = decode(code + following, AT)
        assert (insn.length, insn.target) == (5, window.high - 1)
        assert window.absorbed == len(lengths) - 1


def test_fewer_bytes_behind_leave_fewer_windows():
    """The end of the text."""
    assert [w.prefixes for w in windows(AT, 3, b"\x01")] == []
    assert [w.prefixes for w in windows(AT, 3, b"\x01\x02\x03")] == [0, 1]


def test_no_window_is_outside_of_the_address_space():
    for window in windows(0x40_0000, 4, b"\x80\0\0\0"):
        assert window.low >= 1 << 20


def test_runs_of_free_bytes():
    assert _run(0, 0, PAGE, 5) == 0
    assert _run(0b11011, 0, PAGE, 5) == 5
    assert _run(0, PAGE - 4, PAGE, 5) is None
    assert _run((1 << PAGE) - 1, 0, PAGE, 1) is None
    assert _run(0, 100, 101, 5) == 100


def test_the_room_that_is_found_is_the_first_that_is_free():
    """Whatever the mask, the bounds and the size: compared with trying each offset."""
    rng = random.Random(3)
    for size in (1, 2, 3, 5, 13, 14):
        for _ in range(40):
            used = rng.getrandbits(PAGE) & rng.getrandbits(PAGE) & rng.getrandbits(PAGE)
            low = rng.randrange(PAGE)
            high = min(low + rng.choice([1, 2, 16, 300, PAGE]), PAGE)
            free = [at for at in range(low, min(high, PAGE - size + 1)) if not used >> at & (1 << size) - 1]
            assert _run(used, low, high, size) == (free[0] if free else None)


def test_windows_are_those_of_the_free_bytes_of_the_displacement():
    """Free bytes at its low end are the window; of others, some values are taken, upwards and then downwards."""
    following = bytes.fromhex("9122")
    found = list(wider_windows(AT, (2, 1), following))
    assert [(w.low, w.high) for w in found] == [
        (low := AT + 5 + (int.from_bytes(b"\xcc" + following, "little", signed=True) << 8), low + 256)
    ]
    few = list(wider_windows(AT, (3, 3), b""))
    assert [window.low - AT - 5 >> 24 for window in few] == [*range(0, 16, 2), *range(-1, -17, -2)]
    assert all((window.low - AT - 5) >> 16 & 0xFF == INT3 for window in few)


@isolated
def test_landings_lead_on_and_never_overlap():
    space, rng = LandingSpace("test", keep_open), random.Random(3)
    taken: set[int] = set()
    near = space.gaps.first_free(1 << 40, 1 << 41)
    with patching():
        for _ in range(400):
            address = near + rng.randrange(1 << 20)
            target = address + rng.choice([1 << 12, 1 << 30, 1 << 33])
            choices = windows(address, rng.choice([1, 2, 3, 4]), rng.randbytes(4))
            found = space.take(choices, target)
            if found is None:
                continue
            window, landing = found
            assert window.low <= landing < window.high
            size = 5 if abs(target - landing) < 1 << 31 else FAR_SIZE
            assert not taken & set(range(landing, landing + size))
            taken |= set(range(landing, landing + size))
            assert _leads_to(landing) == target
    assert len(taken) > 1000


def _leads_to(landing: int) -> int | None:
    import ctypes

    insn = decode(ctypes.string_at(landing, 15), landing)
    return insn.target if insn.flow is Flow.JUMP else ctypes.c_uint64.from_address(insn.rip_target or 0).value


@isolated
def test_gaps_are_what_is_free():
    import ctypes

    gaps = AddressSpace()
    here = ctypes.addressof(ctypes.c_int()) & -PAGE
    assert not gaps.free(here)
    free = gaps.first_free(1 << 40, 1 << 41)
    assert free is not None and gaps.free(free)
    gaps.take(free)
    assert not gaps.free(free)
    assert gaps.first_free(free, free + 2 * PAGE) == free + PAGE


@isolated
def test_the_number_of_landing_pages_is_bounded():
    """Over all spaces: a process may have 65,530 mappings"""
    from sandbox.memory import landings

    landings.MOST_PAGES = 3
    first, second = LandingSpace("first", keep_open), LandingSpace("second", keep_open)
    near = first.gaps.first_free(1 << 40, 1 << 41)
    taken = 0
    with patching():
        for number in range(10):
            space = (first, second)[number % 2]
            choices = windows(near + number * (1 << 16), 1, bytes([0, 0, 0, 1]))
            taken += space.take(choices, near) is not None
    assert taken == 3
    assert first.full
    assert second.full
    first.close()
    assert not second.full
