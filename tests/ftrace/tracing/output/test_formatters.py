"""Compiled formatters of records, and files whose text is generated as it is read."""

from __future__ import annotations

import itertools
import os
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrace.ring_buffer.formatters import Memo, Number, compiled, line_formatter
from ftrace.ring_buffer.reader import Record
from ftrace.tracing.files.nodes import LinesFile

SIZES = (1, 2, 4, 8)
NUMBERS = st.builds(
    Number, st.integers(0, 40), st.sampled_from(SIZES), st.booleans(), st.sampled_from(["%d", "%#x"]), st.none()
)


def plainly(piece, data):
    """A piece without a compiler."""
    if isinstance(piece, str):
        return piece
    part = data[piece.offset : piece.offset + piece.size].ljust(piece.size, b"\0")
    return piece.conversion % int.from_bytes(part, "little", signed=piece.is_signed)


@given(st.lists(NUMBERS | st.text("a% {}\\'\n", max_size=3), max_size=8), st.binary(min_size=0, max_size=56))
def test_fields_of_any_order_overlap_and_length(pieces, data):
    """Also of records that end early: a damaged file has some."""
    assert compiled(pieces)(data) == "".join(plainly(piece, data) for piece in pieces)


def test_texts_of_numbers_are_made_once():
    asked = []
    symbols = Memo(lambda address: asked.append(address) or f"<{address}>")
    show = compiled(["(", Number(0, 1, False, "%s", symbols), ") ", lambda data: str(len(data))])
    assert [show(b"\7"), show(b"\7\0"), show(b"\10")] == ["(<7>) 1", "(<7>) 2", "(<8>) 1"] and asked == [7, 8]


def record(stamp, kind, tid=5, slot=2):
    return Record(stamp, slot, 0, struct.pack("<HBBi", kind, 0, 0, tid))


def test_a_line_says_who_when_and_what():
    shows = {1: lambda data: f"{len(data)} bytes", 2: None}
    line = line_formatter(lambda place: f"{place[0]} in {place[1]} ", shows.get, True, lambda each: f"? {each.stamp}")
    assert line(record(1_000_000_499, 1)) == "5 in 2     1.000000: 8 bytes"
    assert line(record(1_999_999_500, 1, tid=-1)) == "-1 in 2     2.000000: 8 bytes"
    assert line(record(7, 2)) == "? 7"
    counted = line_formatter(lambda _: "", shows.get, False)
    assert counted(record(1234567, 1)) == "     1234567: 8 bytes"


def opened(texts):
    made = []

    def lines():
        made.append(0)
        for text in texts:
            made[-1] += 1
            yield text

    return LinesFile(lines, len).open(os.O_RDWR), made


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_a_file_that_is_generated_reads_as_a_whole_one(size):
    handle, _ = opened(["one\n", "zwö\n", "", "three\n"] * 50)
    whole = ("one\nzwö\nthree\n" * 50).encode()
    assert b"".join(iter(lambda: handle.read(size), b"")) == whole
    assert handle.seek(5) == 5 and handle.read(4) == whole[5:9]
    assert handle.seek(0) == 0 and handle.read() == whole and handle.read() == b""


def test_a_read_generates_no_more_than_it_needs():
    handle, made = opened(itertools.repeat("x" * 10))  # without an end
    assert handle.read(5) == b"xxxxx" and made[0] < 100
    handle.read(10_000)
    assert made[0] < 1200 and len(made) == 1
    assert handle.seek(20_000) == 20_000 and handle.read(3) == b"xxx"
    with pytest.raises(OSError, match="at least 0"):
        handle.seek(-1)
