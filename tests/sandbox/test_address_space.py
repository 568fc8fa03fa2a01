"""What of the address space is taken."""

from __future__ import annotations

import os
from random import Random

import pytest

from sandbox.memory import address_space
from sandbox.memory.address_space import AddressSpace, read_once
from sandbox.memory.pages import PAGE

FIRST = 1 << 30


def space_of(monkeypatch: pytest.MonkeyPatch, taken: set[int]) -> AddressSpace:
    """An address space of 64 pages, between two that are taken altogether, with these pages taken."""
    spans = [(0, FIRST, "", ""), *((FIRST + page * PAGE, FIRST + (page + 1) * PAGE, "", "") for page in sorted(taken))]
    monkeypatch.setattr(address_space, "mappings", lambda: [*spans, (FIRST + 64 * PAGE, 1 << 47, "", "")])
    return AddressSpace()


def test_the_nearest_place_of_each_gap_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(3)
    for _ in range(200):
        taken = set(random.sample(range(64), random.randrange(1, 60)))
        space, size = space_of(monkeypatch, taken), random.choice([1, PAGE, 2 * PAGE])
        middle, lowest, highest = random.choice(sorted(taken)), random.randrange(20), random.randrange(40, 64)
        at = [FIRST + page * PAGE for page in (middle, lowest, highest)]
        found = list(space.near(at[0], size, at[1], at[2]))
        pages = -(-size // PAGE)
        fits = {
            FIRST + page * PAGE
            for page in range(lowest, highest + 1)
            if not taken & set(range(page, page + pages)) and page + pages <= 64
        }
        assert set(found) <= fits and bool(found) == bool(fits)
        assert found == sorted(found, key=lambda address: abs(address - at[0]))
        assert not fits or abs(found[0] - at[0]) == min(abs(address - at[0]) for address in fits)


def test_what_has_been_taken_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    space = space_of(monkeypatch, {5})
    first = next(space.near(FIRST + 5 * PAGE, 2 * PAGE, FIRST, FIRST + 64 * PAGE))
    space.take(first, 2 * PAGE)
    assert not space.free(first) and not space.free(first + PAGE)
    assert first not in list(space.near(FIRST + 5 * PAGE, PAGE, FIRST, FIRST + 64 * PAGE))


def test_it_is_read_once_in_a_batch_and_anew_after_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    with read_once():
        known = address_space.address_space()
        with read_once():
            assert address_space.address_space() is known
        monkeypatch.setattr(os, "getpid", lambda: -1)
        assert address_space.address_space() is not known
    assert address_space.address_space() is not known
