"""What the dynamic loader tells of the objects that it has loaded, copied while it holds its lock."""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Iterator
from typing import NamedTuple

from sandbox.elf.tables import Segment
from sandbox.memory.pages import PROT_EXEC, PROT_READ, mprotect
from sandbox.process.once import once
from sandbox.x86_64 import loaded_objects as layout

_PT_LOAD, _PT_NOTE = 1, 4
_PF_R = 4
_ELF_HEADER = 64
_COUNTS = struct.Struct("<2Q")
_INFORMATION = struct.Struct("<3QH6x2Q")
_HEADER = struct.Struct("<2I6Q")
_SPARE = 16
"""Objects that may be loaded between two calls."""
_iterate = ctypes.CDLL(None).dl_iterate_phdr
_iterate.argtypes = (ctypes.c_void_p, ctypes.c_void_p)


class LoadedObject(NamedTuple):
    """A loaded object. `marks`: its ELF header and its notes as they are in memory, each with its offset in the file."""

    base: int
    name: bytes
    headers: tuple[Segment, ...]
    marks: tuple[tuple[int, bytes], ...]


class Loaded(NamedTuple):
    """How many objects had been loaded and unloaded, and the objects."""

    changes: tuple[int, int]
    objects: list[LoadedObject]


def changes() -> tuple[int, int]:
    """How many objects have been loaded and unloaded."""
    return _changes(_copied(1))


def loaded() -> Loaded:
    """All objects, in the loader's order."""
    table = _copied(1)
    while True:
        number, space = _COUNTS.unpack_from(table)
        if number <= space:
            break
        table = _copied(number + _SPARE)
    return Loaded(_changes(table), [_object(table, _COUNTS.size + at * layout.ENTRY) for at in range(number)])


@once
def _callback() -> int:
    page = mmap.mmap(-1, mmap.PAGESIZE)
    page.write(layout.CODE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    mprotect(address, mmap.PAGESIZE, PROT_READ | PROT_EXEC)
    _kept.append(page)
    return address


_kept: list[mmap.mmap] = []


def _copied(space: int) -> bytearray:
    """The callback's table with that many entries."""
    table = bytearray(_COUNTS.size + space * layout.ENTRY)
    _COUNTS.pack_into(table, 0, 0, space)
    _iterate(_callback(), ctypes.addressof(ctypes.c_char.from_buffer(table)))
    return table


def _changes(table: bytearray) -> tuple[int, int]:
    *_, loads, unloads = _INFORMATION.unpack_from(table, _COUNTS.size)
    return loads, unloads


def _object(table: bytearray, at: int) -> LoadedObject:
    base, _, _, number, _, _ = _INFORMATION.unpack_from(table, at)
    name = bytes(table[at + layout.NAME_AT : at + layout.HEADERS_AT]).split(b"\0", 1)[0]
    first = at + layout.HEADERS_AT
    places = range(first, first + min(number, layout.MOST_HEADERS) * layout.HEADER, layout.HEADER)
    headers = tuple(Segment(*_HEADER.unpack_from(table, place)) for place in places)
    return LoadedObject(base, name, headers, tuple(_marks(table, at, headers)))


def _marks(table: bytearray, at: int, headers: tuple[Segment, ...]) -> Iterator[tuple[int, bytes]]:
    """What its file has at some offsets: the ELF header, and notes, among which is the build ID."""
    note = at + layout.NOTES_AT
    for header in headers:
        if header.type == _PT_LOAD and header.flags & _PF_R and header.offset == 0:
            yield 0, bytes(table[at + layout.ELF_HEADER_AT : at + layout.ELF_HEADER_AT + _ELF_HEADER])
        elif (
            header.type == _PT_NOTE
            and header.file_size == header.memory_size <= layout.LONGEST_NOTE
            and note + header.file_size <= at + layout.ENTRY
        ):
            yield header.offset, bytes(table[note : note + header.file_size])
            note += header.file_size
