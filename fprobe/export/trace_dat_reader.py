"""Reading trace.dat, version 7: event formats, symbols, thread names, and records in order of time."""

from __future__ import annotations

import heapq
import struct
from bisect import bisect_right
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from fprobe.export.formats import EventFormat, parse_format
from fprobe.export.trace_dat import (
    BUFFER,
    CMDLINES,
    CPU,
    EVENT_FORMATS,
    FTRACE_EVENTS,
    KALLSYMS,
    MAGIC,
    OPTION,
    OPTIONS,
    SECTION,
    VERSION,
)
from ftrace.ring_buffer.layout import COMMIT_MASK, HEADER, MISSED_EVENTS, MISSED_STORED
from ftrace.ring_buffer.pages import decode
from ftrace.ring_buffer.reader import Record

UNKNOWN = -1
"""`Record.lost` if an unknown number of records is missing."""
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_BY_TIME = attrgetter("stamp", "slot")
_END_MARK = "$end"


class Cpu(NamedTuple):
    """The place of a slot's sub-buffers in the file, in bytes."""

    slot: int
    offset: int
    size: int


class Symbols:
    """The symbols of a trace, from the text of its kallsyms."""

    def __init__(self, text: str) -> None:
        lines = (line.split(None, 2) for line in text.splitlines())
        found = [(int(words[0], 16), words[2].replace("\t", " ")) for words in lines if len(words) == 3]
        found.sort(key=lambda symbol: (symbol[0], symbol[1] == _END_MARK))
        self._addresses = [address for address, _ in found]
        self._names = [name for _, name in found]

    def locate(self, address: int) -> tuple[str, int, int] | None:
        """Name of the symbol that covers an address, offset in it, and its size; None if no symbol covers the address."""
        at = bisect_right(self._addresses, address) - 1
        while at > 0 and self._addresses[at - 1] == self._addresses[at] and self._names[at] == _END_MARK:
            at -= 1
        if at < 0 or self._names[at] == _END_MARK:
            return None
        start = self._addresses[at]
        after = bisect_right(self._addresses, start)
        end = self._addresses[after] if after < len(self._addresses) else start + 1
        return (self._names[at], address - start, end - start) if address < end else None

    def describe(self, address: int) -> str:
        """`symbol+0xoffset/0xsize [module]`; the bare address in hexadecimal if no symbol covers it."""
        found = self.locate(address)
        if found is None:
            return f"{address:#x}"
        name, blank, module = found[0].partition(" ")
        return f"{name}+{found[1]:#x}/{found[2]:#x}{blank}{module}"

    def name(self, address: int) -> str:
        """`symbol [module]`; the bare address in hexadecimal if no symbol covers it."""
        found = self.locate(address)
        return found[0] if found else f"{address:#x}"


class Trace:
    """The contents of a trace.dat. Raises OSError; ValueError, with the reason, for a file that is not one or is cut off."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._data = Path(path).read_bytes()
        self.page_size, options = self._header()
        self.formats: dict[int, EventFormat] = {}
        self.symbols = Symbols("")
        self.comms: dict[int, str] = {}
        self.clock = "local"
        self.cpus: list[Cpu] = []
        for number, content in self._options(options):
            self._take(number, content)

    def records(self) -> Iterator[Record]:
        """The records of all slots, in order of time. `lost`: the number of records missing before one, or UNKNOWN."""
        return heapq.merge(*map(self._of_cpu, self.cpus), key=_BY_TIME)

    def comm(self, tid: int) -> str:
        """The name of a thread; `<...>` if it is not known."""
        return self.comms.get(tid, "<...>")

    # -- sections ---------------------------------------------------------------------------------------------------

    def _header(self) -> tuple[int, int]:
        """The size of a sub-buffer, and the offset of the options."""
        data = self._data
        if not data.startswith(MAGIC):
            raise ValueError(f"{self.path}: not a trace.dat; give a file that fprobe record or trace-cmd has written")
        version, at = _string(data, len(MAGIC))
        if version != VERSION.decode():
            raise ValueError(f"{self.path}: a trace.dat of version {version}; version {VERSION.decode()} can be read")
        if self._bytes(at, 1) != b"\0":
            raise ValueError(f"{self.path}: recorded on a big-endian machine; only little-endian ones can be read")
        (page_size,) = _U32.unpack(self._bytes(at + 2, 4))
        compression, at = _string(data, at + 6)
        if compression != "none":
            how = "trace-cmd convert --compression none -i FILE -o OTHER"
            raise ValueError(f"{self.path}: compressed by {compression}; make a file that is not: {how}")
        _, at = _string(data, at)
        (options,) = _U64.unpack(self._bytes(at, 8))
        if not options:
            raise ValueError(f"{self.path}: incomplete: the recording was killed before it was finished")
        return page_size, options

    def _bytes(self, at: int, size: int) -> bytes:
        if size < 0 or at < 0 or at + size > len(self._data):
            raise ValueError(f"{self.path}: cut off: {size} bytes expected at {at}, but the file has {len(self._data)}")
        return self._data[at : at + size]

    def _section(self, at: int, wanted: int) -> bytes:
        number, flags, _, size = SECTION.unpack(self._bytes(at, SECTION.size))
        if number != wanted or flags:
            raise ValueError(f"{self.path}: section {number} with flags {flags} at {at}; expected section {wanted}")
        return self._bytes(at + SECTION.size, size)

    def _options(self, at: int) -> Iterator[tuple[int, bytes]]:
        seen = set()
        while at and at not in seen:
            seen.add(at)
            content, place = self._section(at, OPTIONS), 0
            while True:
                number, size = OPTION.unpack(_part(content, place, OPTION.size, self.path))
                data = _part(content, place + OPTION.size, size, self.path)
                place += OPTION.size + size
                if number == 0:
                    at = _U64.unpack(data)[0] if size == _U64.size else 0
                    break
                yield number, data

    def _take(self, number: int, content: bytes) -> None:
        if number == BUFFER:
            self._take_buffer(content)
        elif number in (FTRACE_EVENTS, EVENT_FORMATS, KALLSYMS, CMDLINES):
            data = self._section(_U64.unpack(content)[0], number)
            if number == KALLSYMS:
                self.symbols = Symbols(_decoded(data[_U32.size :]))
            elif number == CMDLINES:
                lines = (line.partition(" ") for line in _decoded(data[_U64.size :]).splitlines())
                self.comms = {int(tid): name for tid, _, name in lines}
            elif number == FTRACE_EVENTS:
                self._take_formats("ftrace", data, 0)
            else:
                self._take_systems(data)

    def _take_systems(self, data: bytes) -> None:
        at = _U32.size
        for _ in range(_U32.unpack_from(data)[0]):
            name, at = _string(data, at)
            at = self._take_formats(name, data, at)

    def _take_formats(self, system: str, data: bytes, at: int) -> int:
        (count,) = _U32.unpack(_part(data, at, _U32.size, self.path))
        at += _U32.size
        for _ in range(count):
            (size,) = _U64.unpack(_part(data, at, _U64.size, self.path))
            found = parse_format(system, _decoded(_part(data, at + _U64.size, size, self.path)))
            self.formats[found.id] = found
            at += _U64.size + size
        return at

    def _take_buffer(self, content: bytes) -> None:
        name, at = _string(content, _U64.size)
        if name or self.cpus:
            return  # an instance: only the top level is read
        self.clock, at = _string(content, at)
        (self.page_size,) = _U32.unpack(_part(content, at, _U32.size, self.path))
        (count,) = _U32.unpack(_part(content, at + _U32.size, _U32.size, self.path))
        at += 2 * _U32.size
        self.cpus = [Cpu(*CPU.unpack(_part(content, at + n * CPU.size, CPU.size, self.path))) for n in range(count)]

    # -- records ----------------------------------------------------------------------------------------------------

    def _of_cpu(self, cpu: Cpu) -> Iterator[Record]:
        for at in range(cpu.offset, cpu.offset + cpu.size, self.page_size):
            yield from records_of(cpu.slot, self._bytes(at, self.page_size))


def records_of(slot: int, page: bytes) -> Iterator[Record]:
    """The records of a slot's sub-buffer, oldest first. `lost`: the number of records missing before one, or UNKNOWN."""
    lost = _lost_before(page)
    for event in decode(page):
        yield Record(event.stamp, slot, lost, page[event.offset : event.offset + event.size])
        lost = 0


def _lost_before(page: bytes) -> int:
    """Number of records missing before a sub-buffer, or UNKNOWN."""
    (word,) = _U64.unpack_from(page, 8)
    if not word & MISSED_EVENTS:
        return 0
    at = HEADER + (word & COMMIT_MASK)
    stored = word & MISSED_STORED and at + _U64.size <= len(page)
    return int(_U64.unpack_from(page, at)[0]) if stored else UNKNOWN


def _part(data: bytes, at: int, size: int, path: str) -> bytes:
    if at + size > len(data):
        raise ValueError(f"{path}: cut off: {size} bytes expected at {at} of a section of {len(data)} bytes")
    return data[at : at + size]


def _string(data: bytes, at: int) -> tuple[str, int]:
    """The text at `at` up to its NUL, and the offset after it."""
    end = data.find(b"\0", at)
    if end < 0:
        raise ValueError("cut off inside a text")
    return _decoded(data[at:end]), end + 1


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
