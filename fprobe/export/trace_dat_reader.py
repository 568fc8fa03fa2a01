"""Reading trace.dat, version 7: event formats, symbols, thread names, and records in order of time."""

from __future__ import annotations

import heapq
import re
import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, repeat
from pathlib import Path
from typing import NamedTuple

from fprobe.export import trace_dat_whole as whole
from fprobe.export.compression import NAMES, NONE, Algorithm, algorithm
from fprobe.export.formats import EventFormat, parse_format
from fprobe.export.trace_dat_pages import owner_of
from fprobe.export.trace_dat_sections import (
    BLOCK,
    BUFFER,
    CMDLINES,
    COMPRESSED,
    CPU,
    EVENT_FORMATS,
    FTRACE_EVENTS,
    HEADER_INFO,
    KALLSYMS,
    MAGIC,
    OPTION,
    OPTIONS,
    PRINTK,
    SECTION,
    U32,
    U64,
    VERSION,
    Cpu,
)
from ftrace.hit.ring_buffer.layout import COMMIT_MASK, COMMON, HEADER, MISSED_EVENTS, MISSED_STORED
from ftrace.ring_buffer.pages import spans
from ftrace.ring_buffer.reader import RECORD, Record, in_order
from ftrace.tracing.binary_printf import unknown_text

UNKNOWN = -1
"""`Record.lost` if an unknown number of records is missing."""
_END_MARK = "$end"
_BEFORE_OPTIONS = (HEADER_INFO, FTRACE_EVENTS, EVENT_FORMATS, KALLSYMS, PRINTK, CMDLINES)
_SYMBOL = re.compile(r"^([0-9a-fA-F]{1,16})[ \t]+\S+[ \t]+(\S.*)$", re.MULTILINE)
"""A line of kallsyms. Any other line, of a damaged file, is ignored."""
_PRINTK = re.compile(r'^(0x[0-9a-f]{1,16}) : "(.*)"$', re.MULTILINE)
_ESCAPED = re.compile(r'\\([nt"])')
_COMM = re.compile(r"^(\d{1,10}) (.*)$", re.MULTILINE)


class Instance(NamedTuple):
    """A trace array of a trace. `name`: empty for the top level; `cpus`: where its slots are in the file."""

    name: str = ""
    clock: str = "local"
    page_size: int = 0
    cpus: tuple[Cpu, ...] = ()
    compressed: bool = False


def _unescaped(text: str) -> str:
    """A text of printk_formats."""
    return _ESCAPED.sub(lambda found: {"n": "\n", "t": "\t", '"': '"'}[found[1]], text)


class Symbols:
    """The symbols of a trace, from the text of its kallsyms."""

    def __init__(self, text: str) -> None:
        found = [(int(line[1], 16), line[2].replace("\t", " ")) for line in _SYMBOL.finditer(text)]
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
    """The contents of a trace.dat. Raises OSError; ValueError, with the reason, for a file that is not one or is damaged."""

    def __init__(self, path: str) -> None:
        self.path = path
        with Path(path).open("rb") as file:
            begun = file.peek(len(MAGIC))[: len(MAGIC)]
            self._data = file.read() if MAGIC.startswith(begun) else begun  # /dev/zero has no end
        with _of_file(path):
            self._read()

    def _read(self) -> None:
        self._how: Algorithm | None = None
        self.page_size, options = self._header()
        self.formats: dict[int, EventFormat] = {}
        self.symbols = Symbols("")
        self.comms: dict[int, str] = {}
        self._texts: dict[int, str] = {}
        self._start_of_buffers = 0
        self.instances: list[Instance] = []
        """The trace arrays of the file, the top level first."""
        self.cut_off = ""
        """Why records may be missing at the end; empty for a file that is whole."""
        if self._first_options and not self._is_whole(options):
            self.cut_off, options = f"cut off after {len(self._data)} bytes", self._first_options
        for number, content in self._options(options):
            self._take(number, content)
        if options == self._first_options:
            self.cut_off = self.cut_off or "the recording ended before the file was finished"
            self._find_pages()

    def _is_whole(self, at: int) -> bool:
        """Whether the file has all of the section at an offset, and so everything before it."""
        if at + SECTION.size > len(self._data):
            return False
        return at + SECTION.size + int(SECTION.unpack_from(self._data, at)[3]) <= len(self._data)

    def _find_pages(self) -> None:
        """Take the sub-buffers of a file that was not finished, or is cut off. Decompressed ones are added to the data."""
        size, found = self.page_size, {number: list[Cpu]() for number in range(len(self.instances))}
        start = -(-(self._start_of_buffers + SECTION.size) // size) * size if size >= HEADER else len(self._data)
        once = list(whole.compressed(self._data, start, size, self._how)) if self._how and size >= HEADER else []
        is_finished = any(each.compressed for each in self.instances)
        rest = [] if is_finished else list(whole.in_file(self._data, start + len(once) * size, size))
        end = len(self._data)
        self._data += b"".join(once)
        places = [(owner_of(page), end + number * size) for number, page in enumerate(once)]
        seen = set[bytes]()  # one may be there twice: they are sorted and compressed in place
        for owner, at in places + rest:
            page = self._data[at : at + size]
            if owner is not None and owner.buffer in found and page not in seen:
                found[owner.buffer].append(Cpu(owner.slot, at, size))
                seen.add(page)
        self.instances = [
            each._replace(cpus=tuple(found[number]), compressed=False) for number, each in enumerate(self.instances)
        ]

    def records(self, instance: Instance | None = None) -> Iterator[Record]:
        """The records of a trace array, or of all, in order of time.

        `lost`: the number of records of the slot that are missing before one, or UNKNOWN. Raises ValueError for a damaged file.
        """
        if instance is None:
            return (record for _, record in self.merged())
        slots: dict[int, list[Cpu]] = {}
        for cpu in instance.cpus:
            slots.setdefault(cpu.slot, []).append(cpu)
        each_slot = (chain.from_iterable(self._of_cpu(instance, cpu) for cpu in cpus) for cpus in slots.values())
        return in_order(map(iter, each_slot))

    def merged(self) -> Iterator[tuple[Instance, Record]]:
        """The records of all trace arrays, in order of time, each with its trace array."""
        return merged([(instance, self.records(instance)) for instance in self.instances])

    def comm(self, tid: int) -> str:
        """The name of a thread; `<...>` if it is not known."""
        return self.comms.get(tid, "<...>")

    def text(self, address: int) -> str:
        """A text that records refer to by its address."""
        return self._texts.get(address) or unknown_text(address)

    # -- sections ---------------------------------------------------------------------------------------------------

    def _header(self) -> tuple[int, int]:
        """The size of a sub-buffer, and the offset of the options."""
        data = self._data
        if not data.startswith(MAGIC):
            raise ValueError("not a trace.dat; give a file that fprobe record or trace-cmd has written")
        version, at = _string(data, len(MAGIC))
        if version != VERSION.decode():
            raise ValueError(f"a trace.dat of version {version}; version {VERSION.decode()} can be read")
        if self._bytes(at, 1) != b"\0":
            raise ValueError("recorded on a big-endian machine; only little-endian ones can be read")
        (page_size,) = U32.unpack(self._bytes(at + 2, 4))
        compression, at = _string(data, at + 6)
        self._how = self._algorithm(compression)
        _, at = _string(data, at)
        (options,) = U64.unpack(self._bytes(at, 8))
        if not options:
            raise ValueError("incomplete: the recording was killed before it was finished")
        self._first_options = self._options_before_records(at + U64.size)
        return page_size, options

    def _options_before_records(self, at: int) -> int:
        """The place of the options that `fprobe record` writes first; 0 in a file of another program."""
        while at + SECTION.size <= len(self._data):
            number, flags, _, size = SECTION.unpack(self._bytes(at, SECTION.size))
            if number == OPTIONS and not flags:
                return at
            if number not in _BEFORE_OPTIONS or flags:
                return 0
            at += SECTION.size + size
        return 0

    def _algorithm(self, name: str) -> Algorithm | None:
        if name not in (NONE, *NAMES):
            how = "trace-cmd convert --compression none -i FILE -o OTHER"
            raise ValueError(f"compressed by {name}; make a file that is not: {how}")
        try:
            return algorithm(name)
        except OSError as missing:
            raise ValueError(str(missing)) from None

    def _bytes(self, at: int, size: int) -> bytes:
        if size < 0 or at < 0 or at + size > len(self._data):
            raise ValueError(f"cut off: {size} bytes expected at {at}, but the file has {len(self._data)}")
        return self._data[at : at + size]

    def _section(self, at: int, wanted: int) -> bytes:
        size, is_compressed = self._section_header(at, wanted)
        return self._block(at + SECTION.size)[0] if is_compressed else self._bytes(at + SECTION.size, size)

    def _section_header(self, at: int, wanted: int) -> tuple[int, bool]:
        """The size of a section, and whether it is compressed."""
        number, flags, _, size = SECTION.unpack(self._bytes(at, SECTION.size))
        if number != wanted or flags & ~(COMPRESSED if self._how else 0):
            raise ValueError(f"section {number} with flags {flags} at {at}; expected section {wanted}")
        return size, bool(flags)

    def _block(self, at: int) -> tuple[bytes, int]:
        """The compressed data at an offset, decompressed, and the offset after it."""
        assert self._how is not None
        compressed, size = BLOCK.unpack(self._bytes(at, BLOCK.size))
        after = at + BLOCK.size + compressed
        try:
            return self._how.decompress(self._bytes(at + BLOCK.size, compressed), size), after
        except ValueError as error:
            raise ValueError(f"{error} at {at}") from None

    def _options(self, at: int) -> Iterator[tuple[int, bytes]]:
        seen = set()
        while at and at not in seen:
            seen.add(at)
            content, place = self._section(at, OPTIONS), 0
            while True:
                number, size = OPTION.unpack(_part(content, place, OPTION.size))
                data = _part(content, place + OPTION.size, size)
                place += OPTION.size + size
                if number == 0:
                    at = U64.unpack(data)[0] if size == U64.size else 0
                    break
                yield number, data

    def _take(self, number: int, content: bytes) -> None:
        if number == BUFFER:
            self._take_buffer(content)
        elif number in (FTRACE_EVENTS, EVENT_FORMATS, KALLSYMS, PRINTK, CMDLINES):
            data = self._section(_number(U64, content), number)
            if number == KALLSYMS:
                self.symbols = Symbols(_decoded(data[U32.size :]))
            elif number == PRINTK:
                self._texts = {
                    int(at, 16): _unescaped(text) for at, text in _PRINTK.findall(_decoded(data[U32.size :]))
                }
            elif number == CMDLINES:
                self.comms = {int(tid): name for tid, name in _COMM.findall(_decoded(data[U64.size :]))}
            elif number == FTRACE_EVENTS:
                self._take_formats("ftrace", data, 0)
            else:
                self._take_systems(data)

    def _take_systems(self, data: bytes) -> None:
        at = U32.size
        for _ in range(_number(U32, data)):
            name, at = _string(data, at)
            at = self._take_formats(name, data, at)

    def _take_formats(self, system: str, data: bytes, at: int) -> int:
        (count,) = U32.unpack(_part(data, at, U32.size))
        at += U32.size
        for _ in range(count):
            (size,) = U64.unpack(_part(data, at, U64.size))
            found = parse_format(system, _decoded(_part(data, at + U64.size, size)))
            self.formats[found.id] = found
            at += U64.size + size
        return at

    def _take_buffer(self, content: bytes) -> None:
        name, at = _string(content, U64.size)
        clock, at = _string(content, at)
        (page_size,) = U32.unpack(_part(content, at, U32.size))
        (count,) = U32.unpack(_part(content, at + U32.size, U32.size))
        if page_size < HEADER:
            raise ValueError(f"sub-buffers of {page_size} bytes in the buffer {name!r}")
        at += 2 * U32.size
        self._start_of_buffers = _number(U64, content)
        _, is_compressed = self._section_header(self._start_of_buffers, BUFFER)
        cpus = [Cpu(*CPU.unpack(_part(content, at + n * CPU.size, CPU.size))) for n in range(count)]
        self.instances.append(Instance(name, clock, page_size, tuple(cpus), is_compressed))

    # -- records ----------------------------------------------------------------------------------------------------

    def pages(self, instance: Instance) -> Iterator[tuple[int, bytes]]:
        """The sub-buffers of a trace array, each with its slot; those of a slot in order of time."""
        return ((cpu.slot, page) for cpu in instance.cpus for page in self._pages_of(instance, cpu))

    def _of_cpu(self, instance: Instance, cpu: Cpu) -> Iterator[Record]:
        with _of_file(self.path):
            for page in self._pages_of(instance, cpu):
                yield from records_of(cpu.slot, page)

    def _pages_of(self, instance: Instance, cpu: Cpu) -> Iterator[bytes]:
        size = instance.page_size
        for data in self._chunks(cpu) if instance.compressed else self._one_by_one(cpu, size):
            yield from (_part(data, at, size) for at in range(0, len(data), size))

    def _one_by_one(self, cpu: Cpu, size: int) -> Iterator[bytes]:
        return (self._bytes(at, size) for at in range(cpu.offset, cpu.offset + cpu.size, size))

    def _chunks(self, cpu: Cpu) -> Iterator[bytes]:
        """The sub-buffers of a slot, decompressed, some at a time."""
        if not cpu.size:
            return
        (count,) = U32.unpack(self._bytes(cpu.offset, U32.size))
        at = cpu.offset + U32.size
        for _ in range(count):
            data, at = self._block(at)
            yield data


def merged(sources: Sequence[tuple[Instance, Iterator[Record]]]) -> Iterator[tuple[Instance, Record]]:
    """The records of several trace arrays, each in order of time, in order of time."""
    if len(sources) == 1:
        return zip(repeat(sources[0][0]), sources[0][1], strict=False)
    pairs = (zip(repeat(instance), records, strict=False) for instance, records in sources)
    return heapq.merge(*pairs, key=lambda pair: pair[1].stamp)


def records_of(slot: int, page: bytes) -> Iterator[Record]:
    """The records of a slot's sub-buffer, oldest first. `lost`: the number of records missing before one, or UNKNOWN."""
    lost = _lost_before(page)
    for stamp, start, size in spans(page):
        if size < COMMON:
            raise ValueError(f"damaged sub-buffer: an event of {size} bytes at {start}")
        yield RECORD(Record, (stamp, slot, lost, page[start : start + size]))
        lost = 0


def _lost_before(page: bytes) -> int:
    """Number of records missing before a sub-buffer, or UNKNOWN."""
    (word,) = U64.unpack_from(page, 8)
    if not word & MISSED_EVENTS:
        return 0
    at = HEADER + (word & COMMIT_MASK)
    stored = word & MISSED_STORED and at + U64.size <= len(page)
    return int(U64.unpack_from(page, at)[0]) if stored else UNKNOWN


def _part(data: bytes, at: int, size: int) -> bytes:
    if at + size > len(data):
        raise ValueError(f"cut off: {size} bytes expected at {at} of a section of {len(data)} bytes")
    return data[at : at + size]


def _number(kind: struct.Struct, data: bytes) -> int:
    """The number that the data begin with."""
    return int(kind.unpack(_part(data, 0, kind.size))[0])


@contextmanager
def _of_file(path: str) -> Iterator[None]:
    """Name the file in ValueErrors."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _string(data: bytes, at: int) -> tuple[str, int]:
    """The text at `at` up to its NUL, and the offset after it."""
    end = data.find(b"\0", at)
    if end < 0:
        raise ValueError("cut off inside a text")
    return _decoded(data[at:end]), end + 1


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
