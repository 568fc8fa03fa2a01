"""Sets of positions as numbers."""

from __future__ import annotations

import random

from ftrace.filters.masks import mask_of


def test_a_mask_has_the_bits_of_the_true_positions() -> None:
    flags = [random.Random(5).random() < 0.3 for _ in range(3)] + [True, False, True, True]
    assert [bool(mask_of(flags) >> i & 1) for i in range(len(flags))] == flags


def test_a_mask_of_nothing_is_zero() -> None:
    assert mask_of([]) == 0
    assert mask_of([False] * 70) == 0
