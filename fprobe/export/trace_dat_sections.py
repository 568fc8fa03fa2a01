"""The sections of trace.dat, version 7, as bytes: trace-cmd.dat.v7(5)."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fprobe.export.compression import Algorithm
from fprobe.export.formats import for_readers

MAGIC = b"\x17\x08\x44tracing"
VERSION = b"7"
OPTIONS, BUFFER, STRINGS = 0, 3, 15
HEADER_INFO, FTRACE_EVENTS, EVENT_FORMATS, KALLSYMS, PRINTK, CMDLINES = range(16, 22)
CPUSTAT, TRACECLOCK, UNAME, CPUCOUNT, WRITER, TRACEID = 2, 4, 5, 8, 9, 11
SECTION = struct.Struct("<HHIQ")
"""Header of a section: id, flags, offset of its description in the strings, size."""
COMPRESSED = 1
"""Flag of a section."""
BLOCK = struct.Struct("<II")
"""Header of compressed data: its size, and the size of the original."""
OPTION = struct.Struct("<HI")
CPU = struct.Struct("<IQQ")
U32, U64 = struct.Struct("<I"), struct.Struct("<Q")
_DONE = 0


@dataclass(frozen=True)
class BufferMetadata:
    """The sections of one trace array. `name`: empty for the top level; `stats`: slot -> `stats` file."""

    name: str = ""
    clock: str = "local"
    stats: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Metadata:
    """The contents of a trace.dat besides the records: texts of files of tracefs.

    `formats`: system -> the `format` files of its events; `symbols`: the lines of kallsyms; `buffers`: the top level first.
    """

    header_page: str
    header_event: str
    formats: Mapping[str, Sequence[str]]
    symbols: str
    printk_formats: str = ""
    cmdlines: str = ""
    clocks: str = "[local]\n"
    buffers: Sequence[BufferMetadata] = (BufferMetadata(),)


class Cpu(NamedTuple):
    """The place of a slot's sub-buffers in the file, in bytes; compressed or not."""

    slot: int
    offset: int
    size: int


class Region(NamedTuple):
    """The place of a buffer's section in the file. `size`: without the section's header; `cpus`: sorted by slot."""

    header: int
    size: int
    cpus: list[Cpu]


def tail(
    metadata: Metadata,
    regions: Sequence[Region],
    page_size: int,
    at: int,
    how: Algorithm | None,
    identity: bytes | None = None,
) -> tuple[bytes, int]:
    """The sections except the records, for the offset `at`, and the offset of the options among them.

    `regions`: the place of each buffer; `identity`: 8 bytes that identify the trace, by default random ones.
    """
    made, places = b"", {}
    for number, content in _contents(metadata).items():
        places[number] = at + len(made)
        made += section(number, content, how)
    options = at + len(made)
    listed = _option_list(metadata, places, regions, page_size, identity or os.urandom(8))
    return made + section(OPTIONS, listed) + section(STRINGS, b"\0", how), options


def section(number: int, content: bytes, how: Algorithm | None = None) -> bytes:
    """A section with its header, compressed if there is an algorithm."""
    if how is not None:
        content = block(content, how)
    return SECTION.pack(number, COMPRESSED if how else 0, 0, len(content)) + content


def block(content: bytes, how: Algorithm) -> bytes:
    """The content, compressed, after its sizes."""
    compressed = how.compress(content)
    return BLOCK.pack(len(compressed), len(content)) + compressed


def _option_list(
    metadata: Metadata, places: Mapping[int, int], regions: Sequence[Region], page_size: int, identity: bytes
) -> bytes:
    listed = [(number, U64.pack(place)) for number, place in places.items()]
    listed += [(CPUSTAT, text.encode() + b"\0") for text in _statistics(metadata.buffers)]
    system = os.uname()
    count = 1 + max((cpu.slot for region in regions for cpu in region.cpus), default=0)
    listed += [
        (TRACECLOCK, metadata.clocks.encode() + b"\0"),
        (UNAME, f"{system.sysname} {system.nodename} {system.release} {system.machine}".encode() + b"\0"),
        (CPUCOUNT, U32.pack(count)),
        (WRITER, b"fprobe\0"),
        (TRACEID, identity),
    ]
    listed += [
        (BUFFER, _buffer(buffer, region, page_size)) for buffer, region in zip(metadata.buffers, regions, strict=True)
    ]
    listed.append((_DONE, bytes(8)))
    return b"".join(OPTION.pack(number, len(data)) + data for number, data in listed)


def _statistics(buffers: Sequence[BufferMetadata]) -> list[str]:
    texts = []
    for buffer in buffers:
        texts += [f"\nBuffer: {buffer.name}\n\n"] if buffer.name else []
        texts += [f"CPU: {slot}\n{text}" for slot, text in buffer.stats.items()]
    return texts


def _buffer(buffer: BufferMetadata, region: Region, page_size: int) -> bytes:
    names = buffer.name.encode() + b"\0" + buffer.clock.encode() + b"\0"
    cpus = b"".join(CPU.pack(*cpu) for cpu in region.cpus)
    return U64.pack(region.header) + names + U32.pack(page_size) + U32.pack(len(region.cpus)) + cpus


def _contents(metadata: Metadata) -> dict[int, bytes]:
    """Section id -> content, for all sections except records, options and strings."""
    header_page, header_event = metadata.header_page.encode(), metadata.header_event.encode()
    header = b"header_page\0" + _sized(header_page) + b"header_event\0" + _sized(header_event)
    own = [_sized(for_readers(text).encode()) for text in metadata.formats.get("ftrace", ())]
    systems = {name: texts for name, texts in metadata.formats.items() if name != "ftrace"}
    events = U32.pack(len(systems)) + b"".join(_system(name, texts) for name, texts in systems.items())
    return {
        HEADER_INFO: header,
        FTRACE_EVENTS: U32.pack(len(own)) + b"".join(own),
        EVENT_FORMATS: events,
        KALLSYMS: _sized(metadata.symbols.encode("utf-8", "surrogateescape"), U32),
        PRINTK: _sized(metadata.printk_formats.encode(), U32),
        CMDLINES: _sized(metadata.cmdlines.encode("utf-8", "surrogateescape")),
    }


def _system(name: str, texts: Sequence[str]) -> bytes:
    formats = (_sized(for_readers(text).encode()) for text in texts)
    return name.encode() + b"\0" + U32.pack(len(texts)) + b"".join(formats)


def _sized(data: bytes, size: struct.Struct = U64) -> bytes:
    return size.pack(len(data)) + data
