"""The layout of a process's counter file, and reading it from another process.

The file begins with a page of its own: MAGIC (8 bytes), VERSION (u32), 4 bytes of padding, and the fields of `Header`
(u64 each). Row `t`, of the thread that has task record `t`, begins `stride` bytes after row `t - 1`; line `n` in it, of
the n-th probe, is a `sandbox.threads.tasks.Counters` of `line` bytes. The file is sparse: use `read_line` or
`used_rows`, which use pread, and do not map the file: reading a hole through a mapping allocates it."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

MAGIC = b"fprobecn"
VERSION = 2
ROWS_AT = 4096
"""Bytes in front of the first row."""

_HEADER = struct.Struct("<8sI4x6Q")
_LINE = struct.Struct("<7Q")
_HITS = (1 << 48) - 1


class Header(NamedTuple):
    """The file's header; sizes in bytes. `rows`: how many there can be; `lines`: how many a row has."""

    rows_at: int
    line: int
    stride: int
    rows: int
    lines: int
    pid: int

    @property
    def size(self) -> int:
        """Of the whole file."""
        return self.rows_at + self.rows * self.stride


class Line(NamedTuple):
    """The counts of one thread for one probe: hits, and misses by cause."""

    hits: int = 0
    missed_recursion: int = 0
    missed_nodes: int = 0
    missed_busy: int = 0
    missed_depth: int = 0
    missed_context: int = 0
    missed_interpreter: int = 0


def packed(header: Header) -> bytes:
    """The header as it is in the file."""
    return _HEADER.pack(MAGIC, VERSION, *header)


def header_of(fd: int) -> Header:
    """The header of an open file. Raises ValueError for one that has no counters, or has them in another version."""
    data = os.pread(fd, _HEADER.size, 0)
    magic, version, *fields = _HEADER.unpack(data.ljust(_HEADER.size, b"\0"))
    if magic != MAGIC:
        raise ValueError(f"not a file of counters: it begins with {data[:8]!r}, not {MAGIC!r}")
    if version != VERSION:
        raise ValueError(f"the counters are of version {version}; this reads version {VERSION}")
    return Header(*fields)


def used(fd: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The parts of [start, end) of a sparse file that take memory, as (start, end)."""
    while start < end:
        try:
            start = os.lseek(fd, start, os.SEEK_DATA)
        except OSError:  # ENXIO: no data follows
            return
        if start >= end:
            return
        hole = min(os.lseek(fd, start, os.SEEK_HOLE), end)
        yield start, hole
        start = hole


def used_rows(fd: int, header: Header) -> list[int]:
    """The rows that have counted anything."""
    rows, position = [], header.rows_at
    while (part := next(used(fd, position, header.size), None)) is not None:
        rows.append((part[0] - header.rows_at) // header.stride)
        position = header.rows_at + (rows[-1] + 1) * header.stride
    return rows


def read_line(fd: int, header: Header, row: int, number: int) -> Line:
    """A line. Lines that were never written read as 0 and stay unallocated."""
    data = os.pread(fd, _LINE.size, header.rows_at + row * header.stride + number * header.line)
    tally, *missed = _LINE.unpack(data)
    return Line(tally & _HITS, *missed)


def total(fd: int, header: Header, number: int) -> Line:
    """A probe's line, added up over all rows."""
    return Line(
        *map(sum, zip(Line(), *(read_line(fd, header, row, number) for row in used_rows(fd, header)), strict=True))
    )
