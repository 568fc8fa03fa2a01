"""The sub-buffers in a trace.dat: sorting and compressing them in place.

A recording thus never takes twice its size on the disk.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from fprobe.export.compression import Algorithm
from fprobe.export.trace_dat_sections import BUFFER, COMPRESSED, SECTION, U32, Cpu, Region, block
from ftrace.hit.ring_buffer.layout import HEADER

PAGES_IN_CHUNK = 10
"""Sub-buffers that are compressed together, as trace-cmd does."""
GAP = -1
"""In place of a slot: the space before the records of each buffer but the first, for the header of its section."""


class Owner(NamedTuple):
    """The owner of a sub-buffer. `buffer`: index of the trace array; `slot`: or GAP."""

    buffer: int
    slot: int


_OWNED = 1 << 31
_COMMIT_HIGH = 12
"""Offset of the upper half of a sub-buffer's commit word, which readers ignore."""


def mark(owner: Owner) -> int:
    """The word by which a sub-buffer in the file says whose it is, so that a file that is not finished can be read."""
    return _OWNED | owner.buffer << 16 | owner.slot


def owned(page: bytes, owner: Owner) -> bytes:
    """The sub-buffer with that word."""
    return page[:_COMMIT_HIGH] + U32.pack(mark(owner)) + page[_COMMIT_HIGH + U32.size :]


def owner_of(page: bytes) -> Owner | None:
    """Whose a sub-buffer is; None for anything else."""
    (word,) = U32.unpack_from(page.ljust(HEADER, b"\0"), _COMMIT_HIGH)
    return Owner(word >> 16 & 0x7FFF, word & 0xFFFF) if word & _OWNED else None


class Area(NamedTuple):
    """The part of a file that has the sub-buffers.

    `first`: offset of the first section's header; `start`: of the first sub-buffer.
    """

    descriptor: int
    first: int
    start: int
    page_size: int

    def page(self, number: int) -> bytes:
        """The sub-buffer at a position."""
        return os.pread(self.descriptor, self.page_size, self.start + number * self.page_size)

    def put(self, number: int, page: bytes) -> None:
        """Write a sub-buffer at a position."""
        os.pwrite(self.descriptor, page, self.start + number * self.page_size)


def sort(area: Area, owners: Sequence[Owner]) -> None:
    """Sort the sub-buffers by owner. Follows the cycles of the permutation, to write each sub-buffer only once."""
    source = sorted(range(len(owners)), key=owners.__getitem__)
    done = bytearray(len(owners))
    for first in range(len(owners)):
        if done[first] or source[first] == first:
            continue
        displaced, at = area.page(first), first
        while source[at] != first:
            area.put(at, area.page(source[at]))
            done[at] = 1
            at = source[at]
        area.put(at, displaced)
        done[at] = 1


def layout(area: Area, owners: Sequence[Owner], buffers: int) -> list[Region]:
    """The place of each buffer when its sub-buffers are sorted."""
    found = {owner: len(list(same)) for owner, same in groupby(sorted(owners))}
    regions, at = [], area.start
    for buffer in range(buffers):
        header = at if buffer else area.first
        at += area.page_size if buffer else 0
        cpus = []
        for slot, count in [(owner.slot, count) for owner, count in found.items() if owner.buffer == buffer]:
            if slot != GAP:
                cpus.append(Cpu(slot, at, count * area.page_size))
                at += count * area.page_size
        regions.append(Region(header, at - header - SECTION.size, cpus))
    return regions


def write_headers(area: Area, regions: Sequence[Region], how: Algorithm | None) -> None:
    """Write the headers of the buffers' sections."""
    for region in regions:
        header = SECTION.pack(BUFFER, COMPRESSED if how else 0, 0, region.size)
        os.pwrite(area.descriptor, header, region.header)


def compress(area: Area, regions: Sequence[Region], how: Algorithm) -> list[Region]:
    """Compress sorted sub-buffers towards the beginning of the file. Returns the new places; the rest keeps its old content."""
    writer = _Writer(area)
    compressed = []
    for region in regions:
        header = area.first if region.header == area.first else writer.append(bytes(SECTION.size))
        cpus = [_compress_cpu(area, writer, cpu, how) for cpu in region.cpus]
        compressed.append(Region(header, max(writer.end - header - SECTION.size, 0), cpus))
    writer.flush(writer.end)
    return compressed


def _compress_cpu(area: Area, writer: _Writer, cpu: Cpu, how: Algorithm) -> Cpu:
    writer.append(bytes(-writer.end % area.page_size))
    at = writer.end
    size = area.page_size * PAGES_IN_CHUNK
    writer.append(U32.pack(-(-cpu.size // size)))
    for offset in range(cpu.offset, cpu.offset + cpu.size, size):
        end = min(offset + size, cpu.offset + cpu.size)
        writer.append(block(os.pread(area.descriptor, end - offset, offset), how))
        writer.flush(end)
    return Cpu(cpu.slot, at, writer.end - at)


class _Writer:
    """Writes to a file that is being read from its start: data that would overwrite something unread waits in memory."""

    def __init__(self, area: Area) -> None:
        self._descriptor = area.descriptor
        self._written = area.start
        self._waiting = bytearray()

    @property
    def end(self) -> int:
        """Offset after everything that was appended."""
        return self._written + len(self._waiting)

    def append(self, data: bytes) -> int:
        """Write these bytes when there is space. Returns their offset."""
        at = self.end
        self._waiting += data
        return at

    def flush(self, read: int) -> None:
        """Write what fits, where everything before the offset `read` has been read."""
        ready = self._waiting[: max(read - self._written, 0)]
        os.pwrite(self._descriptor, ready, self._written)
        self._written += len(ready)
        del self._waiting[: len(ready)]
