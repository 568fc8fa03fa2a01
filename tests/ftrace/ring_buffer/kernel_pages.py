"""A second reader of the kernel's sub-buffers, for the tests: written from the description of the format alone."""

from __future__ import annotations

from typing import NamedTuple


class Decoded(NamedTuple):
    """A sub-buffer: its events as (time, data), and what its commit word says of lost ones (None: nothing is lost)."""

    events: list[tuple[int, bytes]]
    lost: int | None


def number(data: bytes, at: int, size: int) -> int:
    """A little-endian number."""
    return int.from_bytes(data[at : at + size], "little")


def decode(page: bytes) -> Decoded:
    """Read a sub-buffer from its first byte to the last that its commit word covers."""
    time, word = number(page, 0, 8), number(page, 8, 8)
    end, events = 16 + (word & 0x7FFFFFF), []
    at = 16
    while at < end:
        header = number(page, at, 4)
        type_len, delta = header % 32, header // 32
        if type_len in (30, 31):
            value = delta + number(page, at + 4, 4) * 2**27
            time = time + value if type_len == 30 else time // 2**59 * 2**59 + value
            at += 8
            continue
        time += delta
        if type_len in (0, 29):
            length, start = number(page, at + 4, 4) - 4, at + 8
        else:
            length, start = type_len * 4, at + 4
        if type_len != 29:
            events.append((time, page[start : start + length]))
        at = start + length
    assert at == end, "the last event is cut"
    lost = None
    if word >> 31 & 1:
        lost = number(page, end, 8) if word >> 30 & 1 else 0
    return Decoded(events, lost)
