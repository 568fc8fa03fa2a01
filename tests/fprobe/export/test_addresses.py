"""Hazard: an address in a column has another text than in a report."""

from __future__ import annotations

import random

import pytest

arrow = pytest.importorskip("pyarrow")


def test_addresses_have_the_text_that_python_gives_them():
    from fprobe.export.columns.addresses import texts_of_addresses

    generator = random.Random(3)
    words = [
        0,
        1,
        9,
        10,
        15,
        16,
        (1 << 64) - 1,
        *(generator.getrandbits(64) >> generator.randrange(64) for _ in range(999)),
    ]
    assert texts_of_addresses(arrow.array(words, arrow.uint64())).to_pylist() == [f"{each:#x}" for each in words]
    assert texts_of_addresses(arrow.array([1, 2, None], arrow.uint64()).slice(1)).to_pylist()[0] == "0x2"
    assert len(texts_of_addresses(arrow.array([], arrow.uint64()))) == 0
