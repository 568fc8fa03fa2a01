"""The sub-buffers that are whole in a trace.dat of `fprobe record` that was cut off, or not finished: each says whose it is."""

from __future__ import annotations

from collections.abc import Iterator

from fprobe.export.compression import Algorithm
from fprobe.export.trace_dat_pages import PAGES_IN_CHUNK, Owner, owner_of
from fprobe.export.trace_dat_sections import BLOCK, BUFFER, COMPRESSED, SECTION, U32
from ftrace.hit.ring_buffer.layout import HEADER


def in_file(data: bytes, start: int, size: int) -> Iterator[tuple[Owner, int]]:
    """Those that are not compressed, from the offset `start` on: owner and offset."""
    for at in range(start, len(data) - size + 1, size):
        owner = owner_of(data[at : at + HEADER])
        if owner is not None:
            yield owner, at


def compressed(data: bytes, start: int, size: int, how: Algorithm) -> Iterator[bytes]:
    """Those that are compressed, from the offset `start` on, where the first slot's are.

    After a slot's comes the next slot's, at a multiple of `size`; between them may be the headers of other buffers.
    """
    at: int | None = start
    while at is not None:
        count, at = _number(data, at)
        while count and at is not None:
            chunk, at = _chunk(data, at, size, how)
            yield from (chunk[place : place + size] for place in range(0, len(chunk), size))
            count -= 1
        at = _next_slot(data, at, size) if at is not None else None


def _number(data: bytes, at: int) -> tuple[int, int | None]:
    """How many chunks a slot has, and the offset of the first."""
    if at + U32.size > len(data):
        return 0, None
    (count,) = U32.unpack_from(data, at)
    return count, at + U32.size if count else None


def _chunk(data: bytes, at: int, size: int, how: Algorithm) -> tuple[bytes, int | None]:
    """A chunk, decompressed, and the offset after it; None if it is not whole."""
    if at + BLOCK.size > len(data):
        return b"", None
    short, length = BLOCK.unpack_from(data, at)
    end = at + BLOCK.size + short
    if end > len(data) or not length or length % size or length > size * PAGES_IN_CHUNK:
        return b"", None
    try:
        return how.decompress(data[at + BLOCK.size : end], length), end
    except ValueError:
        return b"", None


def _next_slot(data: bytes, at: int, size: int) -> int:
    while at + SECTION.size <= len(data) and SECTION.unpack_from(data, at)[:2] == (BUFFER, COMPRESSED):
        at += SECTION.size
    return -(-at // size) * size
