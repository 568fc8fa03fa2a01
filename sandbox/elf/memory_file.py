"""A loaded library whose file is not there any more, as an ELF file: rebuilt from the memory that the loader has mapped.

A file's sections are not loaded. The rebuilt file has those that the dynamic section leads to: dynamic symbols and their names.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple

from sandbox.elf import tables as elf

Read = Callable[[int, int], bytes]
"""(address, size) -> the bytes of the memory there. Raises OSError."""

_HEADER, _HEADERS_AT, _COUNTS_AT = 64, 40, 58
_SECTION = struct.Struct("<IIQQQQIIQQ")
_PT_DYNAMIC = 2
_STRINGS, _SYMBOLS, _STRINGS_SIZE, _HASH = 5, 6, 10, 4
_GNU_HASH, _VERSIONS = 0x6FFFFEF5, 0x6FFFFFF0
_HIDDEN = 0x8000
_LARGEST = 1 << 30
_NAMES = b"\0.text\0.data\0.dynsym\0.dynstr\0.names\0"


class _Loaded(NamedTuple):
    """The memory of a library. `base` is added to the addresses in its file."""

    read: Read
    base: int
    segments: list[elf.Segment]

    def at(self, pointer: int) -> int:
        """The address that a pointer of the dynamic section means: the loader may have added the base."""
        return pointer if pointer >= self.base else pointer + self.base

    def is_code(self, address: int) -> bool:
        return any(
            each.type == elf.PT_LOAD and each.flags & elf.PF_X and 0 <= address - each.address < each.memory_size
            for each in self.segments
        )


def from_memory(read: Read, start: int) -> elf.ElfFile:
    """The library whose first segment is mapped at `start`. Raises OSError if it cannot be read, ElfError if it is not ELF."""
    header = read(start, _HEADER)
    if not header.startswith(b"\x7fELF"):
        raise elf.ElfError(f"no ELF file is mapped at {start:#x}")
    at, size, count = (
        struct.unpack_from(form, header, offset)[0] for form, offset in (("<Q", 32), ("<H", 54), ("<H", 56))
    )
    raw = read(start + at, size * count)
    segments = [elf.Segment(*struct.unpack_from("<IIQQQQQQ", raw, size * number)) for number in range(count)]
    lowest = min((each.address for each in segments if each.type == elf.PT_LOAD), default=0)
    loaded = _Loaded(read, start - (lowest & -4096), segments)
    return elf.ElfFile(_rebuilt(loaded, header))


def _rebuilt(loaded: _Loaded, header: bytes) -> bytes:
    """The file's bytes: the segments where they were in it, followed by the tables of sections."""
    whole = [each for each in loaded.segments if each.type == elf.PT_LOAD]
    end = max((each.offset + each.file_size for each in whole), default=_HEADER)
    if end > _LARGEST:
        raise elf.ElfError(f"the segments have {end} bytes, which is too much")
    image = bytearray(end)
    for each in whole:
        image[each.offset : each.offset + each.file_size] = loaded.read(loaded.base + each.address, each.file_size)
    image[:_HEADER] = header
    symbols, strings = _dynamic_symbols(loaded)
    sections = _sections(loaded, symbols)
    for part, kind, name, link, entry in (
        (symbols, elf.SHT_DYNSYM, b".dynsym", len(sections) + 1, elf.SYMBOL.size),
        (strings, elf.SHT_STRTAB, b".dynstr", 0, 0),
        (_NAMES, elf.SHT_STRTAB, b".names", 0, 0),
    ):
        sections.append(_section(name, kind, 0, len(image), len(part), link, entry))
        image += part
    struct.pack_into("<Q", image, _HEADERS_AT, len(image))
    struct.pack_into("<3H", image, _COUNTS_AT, _SECTION.size, len(sections), len(sections) - 1)
    return bytes(image) + b"".join(sections)


def _section(name: bytes, kind: int, flags: int, offset: int, size: int, link: int = 0, entry: int = 0) -> bytes:
    return _SECTION.pack(_NAMES.index(name + b"\0"), kind, flags, 0, offset, size, link, 0, 1, entry)


def _sections(loaded: _Loaded, symbols: bytes) -> list[bytes]:
    """The sections that symbols refer to by their numbers, with the names of code or of data, and without contents."""
    kinds: dict[int, bytes] = {}
    for _, _, _, number, address, _ in elf.SYMBOL.iter_unpack(symbols):
        if 0 < number < elf.SHN_LORESERVE:
            kinds[number] = b".text" if loaded.is_code(address) else kinds.get(number, b".data")
    empty = _SECTION.pack(*(0 for _ in range(10)))
    return [
        _section(kinds[number], elf.SHT_NOBITS, elf.SHF_ALLOC, 0, 0) if number in kinds else empty
        for number in range(max(kinds, default=0) + 1)
    ]


def _dynamic_symbols(loaded: _Loaded) -> tuple[bytes, bytes]:
    """The table of dynamic symbols, and their names. Those of old versions are undefined in it."""
    dynamic = next((each for each in loaded.segments if each.type == _PT_DYNAMIC), None)
    if dynamic is None:
        raise elf.ElfError("the library has no dynamic section")
    entries = dict(struct.iter_unpack("<qQ", loaded.read(loaded.base + dynamic.address, dynamic.memory_size & -16)))
    if not {_STRINGS, _SYMBOLS, _STRINGS_SIZE} <= entries.keys():
        raise elf.ElfError("the library's dynamic section names no symbols")
    count = _count(loaded, entries)
    table = bytearray(loaded.read(loaded.at(entries[_SYMBOLS]), count * elf.SYMBOL.size))
    if _VERSIONS in entries:
        versions = struct.unpack(f"<{count}H", loaded.read(loaded.at(entries[_VERSIONS]), 2 * count))
        for number, version in enumerate(versions):
            if version & _HIDDEN:
                struct.pack_into("<H", table, number * elf.SYMBOL.size + 6, elf.SHN_UNDEF)
    return bytes(table), loaded.read(loaded.at(entries[_STRINGS]), entries[_STRINGS_SIZE])


def _count(loaded: _Loaded, entries: Mapping[int, int]) -> int:
    """The number of dynamic symbols, which only the hash tables tell."""
    if _HASH in entries:
        return int(struct.unpack("<2I", loaded.read(loaded.at(entries[_HASH]), 8))[1])
    if _GNU_HASH not in entries:
        raise elf.ElfError("the library has no hash table of its symbols")
    at = loaded.at(entries[_GNU_HASH])
    buckets, first, words, _ = struct.unpack("<4I", loaded.read(at, 16))
    at += 16 + 8 * words
    last = max(struct.unpack(f"<{buckets}I", loaded.read(at, 4 * buckets)), default=0)
    if last < first:
        return int(first)
    at += 4 * buckets + 4 * (last - first)
    while not struct.unpack("<I", loaded.read(at, 4))[0] & 1:
        last, at = last + 1, at + 4
    return int(last) + 1
