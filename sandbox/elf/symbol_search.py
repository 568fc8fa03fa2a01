"""Entries of a symbol table by name or by address, found as bytes: an object for each of 100,000 entries costs seconds.

Names are found through `.gnu.hash` if the table has one, else in the table of strings.
"""

from __future__ import annotations

import mmap
import struct
from array import array
from collections.abc import Iterator
from typing import Literal

from sandbox.elf import tables as elf

Entry = tuple[int, elf.ElfSymbol]
"""An entry with its index in the table."""

_SHT_GNU_HASH = 0x6FFFFFF6
_HASH_HEAD = struct.Struct("<4I")
_CHUNK = 1 << 22
"""Bytes of a file that are searched at once: more of it does not stay in memory."""
_FEW = 16
"""Places of a name in the strings that are looked for one by one."""


def count(file: elf.ElfFile, table: int) -> int:
    """The number of entries."""
    return len(file.contents(table)) // elf.SYMBOL.size


def has_type(file: elf.ElfFile, table: int, kind: int) -> bool:
    """Whether a symbol of this STT type is there, of any binding that linkers write."""
    return not {binding << 4 | kind for binding in (0, 1, 2, 10)}.isdisjoint(column(file, table, "B", 4).tobytes())


def called(file: elf.ElfFile, table: int, name: bytes) -> list[Entry]:
    """The entries whose name in the table is `name`, with or without a version, in the order of the table."""
    for section in file.sections_of_type(_SHT_GNU_HASH):
        if file.sections[section].link == table:
            return _hashed(file, table, section, name)
    return _with_names_at(file, table, _places(file, table, name))


def containing(file: elf.ElfFile, table: int, word: bytes) -> list[Entry]:
    """The entries that have `word` in their name, in the order of the table."""
    section = file.sections[table].link
    strings = file.contents(section)
    return _with_names_at(file, table, {_start_of(strings, at) for at in found_in(file, section, word)})


def between(file: elf.ElfFile, table: int, first: int, end: int) -> list[Entry]:
    """The entries with `first` <= value < `end`, which are close together, in the order of the table."""
    values = values_in(file, table)
    high = range(first >> 8, (end - 1 >> 8) + 1)
    near = (index for part in high for index in _indexes(values, struct.pack("<Q", part)[:7], 8, 1))
    entries = (entry_at(file, table, index) for index in sorted(near))
    return [entry for entry in entries if first <= entry[1].value < end]


def values_in(file: elf.ElfFile, table: int) -> bytes:
    """The values of all entries, 8 bytes each."""
    return column(file, table, "Q", 8).tobytes()


def having(file: elf.ElfFile, table: int, value: int, values: bytes) -> list[Entry]:
    """The entries with this value, in the order of the table. `values`: see `values_in`."""
    return [entry_at(file, table, index) for index in _indexes(values, struct.pack("<Q", value), 8, 0)]


def like(file: elf.ElfFile, table: int, name: bytes, most: int) -> list[str]:
    """Names of defined functions that have a third of `name` in them, at most that many."""
    size = -(-len(name) // 3)
    pieces = {name[at : at + size] for at in range(0, len(name), size)} if len(name) > 5 else set[bytes]()
    columns = column(file, table, "I", 0), column(file, table, "B", 4), column(file, table, "H", 6)
    functions = {at for at, info, section in zip(*columns, strict=True) if section and info & 15 == elf.STT_FUNC}
    strings, found = file.contents(file.sections[table].link), dict[bytes, None]()
    for piece in sorted(pieces):
        for at in found_in(file, file.sections[table].link, piece):
            start = _start_of(strings, at)
            if start in functions and len(found) < most:
                found[bytes(strings[start : start + 1024]).partition(b"\0")[0]] = None
    return [each.decode("utf-8", "surrogateescape").partition("@")[0] for each in found]


def name_of(file: elf.ElfFile, table: int, entry: elf.ElfSymbol) -> str:
    strings, size = file.contents(file.sections[table].link), 256
    while b"\0" not in (text := bytes(strings[entry.name_offset : entry.name_offset + size])) and len(text) == size:
        size *= 4
    return elf.string_at(text, 0)


def _with_names_at(file: elf.ElfFile, table: int, offsets: set[int]) -> list[Entry]:
    """The entries whose names begin at these offsets in the strings."""
    names = column(file, table, "I", 0).tobytes()
    if len(offsets) <= _FEW:
        indexes = sorted(index for offset in offsets for index in _indexes(names, struct.pack("<I", offset), 4, 0))
    else:
        indexes = [index for index, offset in enumerate(array("I", names)) if offset in offsets]
    return [entry_at(file, table, index) for index in indexes]


def _start_of(strings: memoryview, at: int) -> int:
    """Where the string begins that has a byte at `at`."""
    size = 256
    while b"\0" not in (before := bytes(strings[max(at - size, 0) : at])) and size < at:
        size *= 4
    return at - len(before.rpartition(b"\0")[2])


def column(file: elf.ElfFile, table: int, form: Literal["B", "H", "I", "Q"], offset: int) -> memoryview:
    """A field of all entries, `offset` bytes from the start of each, in the order of the table."""
    size = struct.calcsize(form)
    contents = file.contents(table)
    whole = contents[: len(contents) // elf.SYMBOL.size * elf.SYMBOL.size]
    return whole.cast(form)[offset // size :: elf.SYMBOL.size // size]


def entry_at(file: elf.ElfFile, table: int, index: int) -> Entry:
    """The entry with this index."""
    name, info, _other, section, value, size = elf.SYMBOL.unpack_from(file.contents(table), index * elf.SYMBOL.size)
    return index, elf.ElfSymbol(name, info, section, value, size)


def _indexes(items: bytes, wanted: bytes, width: int, offset: int) -> Iterator[int]:
    """The items of a column, `width` bytes each, that have the bytes `wanted` at an offset."""
    at = items.find(wanted)
    while at >= 0:
        if at % width == offset:
            yield at // width
        at = items.find(wanted, at + 1)


def _hashed(file: elf.ElfFile, table: int, section: int, name: bytes) -> list[Entry]:
    """The same through the hash table in `section`. It has all defined symbols that have a name other objects may use."""
    data = file.contents(section)
    buckets, first, words, _shift = _HASH_HEAD.unpack_from(data)
    chains = _HASH_HEAD.size + 8 * words + 4 * buckets
    wanted = _hash_of(name)
    index = struct.unpack_from("<I", data, chains - 4 * buckets + 4 * (wanted % buckets))[0] if buckets else 0
    strings, found = file.contents(file.sections[table].link), list[Entry]()
    while index >= first > 0:
        (word,) = struct.unpack_from("<I", data, chains + 4 * (index - first))
        entry = entry_at(file, table, index)
        at = entry[1].name_offset
        if word | 1 == wanted | 1 and bytes(strings[at : at + len(name) + 1]) == name + b"\0":
            found.append(entry)
        if word & 1:
            break
        index += 1
    return found


def _hash_of(name: bytes) -> int:
    value = 5381
    for byte in name:
        value = value * 33 + byte & 0xFFFFFFFF
    return value


def _places(file: elf.ElfFile, table: int, name: bytes) -> set[int]:
    """The offsets in the strings at which `name`, or `name@` and a version, begins; it may be the end of another string."""
    section, end = file.sections[table].link, len(name)
    strings = file.contents(section)
    return {at for at in found_in(file, section, name) if bytes(strings[at + end : at + end + 1]) in (b"\0", b"@")}


def found_in(file: elf.ElfFile, section: int, wanted: bytes) -> Iterator[int]:
    """Where the bytes `wanted` begin in a section, ascending. What has been searched is not kept in memory."""
    contents = file.contents(section)
    for start in range(0, len(contents), _CHUNK):
        chunk = bytes(contents[start : start + _CHUNK + len(wanted) - 1])
        _let_go(file, file.sections[section].offset + start, len(chunk))
        at = chunk.find(wanted)
        while at >= 0:
            yield start + at
            at = chunk.find(wanted, at + 1)


def _let_go(file: elf.ElfFile, start: int, size: int) -> None:
    """These bytes of the file need not be in this process's memory any more."""
    whole = file.data.obj
    first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, (start + size) // mmap.PAGESIZE * mmap.PAGESIZE
    if isinstance(whole, mmap.mmap) and first < last:
        whole.madvise(mmap.MADV_DONTNEED, first, last - first)
