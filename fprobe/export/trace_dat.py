"""Writing trace.dat, version 7, for trace-cmd, KernelShark and libtraceevent: trace-cmd.dat.v7(5).

Sub-buffers are appended in the order in which they arrive, and sorted by slot at the end. They are sorted in place, so that a
recording never takes twice its size on the disk.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from fprobe.export.formats import for_readers

MAGIC = b"\x17\x08\x44tracing"
VERSION = b"7"
OPTIONS, BUFFER, STRINGS = 0, 3, 15
HEADER_INFO, FTRACE_EVENTS, EVENT_FORMATS, KALLSYMS, PRINTK, CMDLINES = range(16, 22)
CPUSTAT, TRACECLOCK, UNAME, CPUCOUNT, WRITER, TRACEID = 2, 4, 5, 8, 9, 11
SECTION = struct.Struct("<HHIQ")
"""Header of a section: id, flags, offset of its description in the strings, size."""
OPTION = struct.Struct("<HI")
CPU = struct.Struct("<IQQ")
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_DONE = 0


@dataclass(frozen=True)
class Metadata:
    """The contents of a trace.dat besides the records: texts of files of tracefs.

    `formats`: system -> the `format` files of its events; `symbols`: the lines of kallsyms; `stats`: slot -> `stats` file.
    """

    header_page: str
    header_event: str
    formats: Mapping[str, Sequence[str]]
    symbols: str
    printk_formats: str = ""
    cmdlines: str = ""
    clock: str = "local"
    clocks: str = "[local]\n"
    stats: Mapping[int, str] = field(default_factory=dict)


class TraceDat:
    """A trace.dat that is being written. The file gets mode 0600; its old content is deleted.

    Raises OSError: ELOOP for a symbolic link, EEXIST for any other file that is not regular.
    """

    def __init__(self, path: str, page_size: int) -> None:
        self.path, self.page_size = path, page_size
        self.descriptor = _opened(path)
        self.slots: list[int] = []
        """The slot of each sub-buffer, in the order in which they were written."""
        self._head = MAGIC + VERSION + b"\0" + bytes((0, 8)) + _U32.pack(page_size) + b"none\0" + b"\0"
        self._section = len(self._head) + _U64.size
        self._start = -(-(self._section + SECTION.size) // page_size) * page_size
        self.truncate()

    @property
    def pages(self) -> int:
        """Number of sub-buffers written."""
        return len(self.slots)

    def truncate(self) -> None:
        """Cut off what was written after the last whole sub-buffer."""
        end = self._start + self.pages * self.page_size
        os.ftruncate(self.descriptor, end)
        os.lseek(self.descriptor, end, os.SEEK_SET)

    def add(self, slot: int, page: bytes) -> None:
        """Append a sub-buffer. If it raises OSError, nothing is appended."""
        try:
            _write_all(self.descriptor, page)
        except OSError:
            self.truncate()
            raise
        self.slots.append(slot)

    def account(self, slot: int) -> None:
        """Take over the sub-buffers of a slot that were written to `descriptor` directly; cut off an incomplete one."""
        end = os.lseek(self.descriptor, 0, os.SEEK_CUR)
        written = (end - self._start) // self.page_size
        self.slots += [slot] * (written - self.pages)
        if (end - self._start) % self.page_size:
            self.truncate()

    def finish(self, metadata: Metadata) -> int:
        """Write the other sections and close the file. Raises OSError.

        Returns the number of sub-buffers that were deleted to make space for the sections, because the disk is full.
        """
        try:
            dropped = self._write_tail(metadata)
            self._sort()
            os.pwrite(self.descriptor, self._beginning(), 0)
            return dropped
        finally:
            os.close(self.descriptor)

    def _write_tail(self, metadata: Metadata) -> int:
        """Write the sections after the records. If the disk is full, they replace the newest sub-buffers."""
        before = self.pages
        while True:
            self.truncate()
            tail, self._options = self._tail(metadata)
            try:
                _write_all(self.descriptor, tail)
                return before - self.pages
            except OSError as full:
                if full.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or not self.slots:
                    raise
                wanted = len(tail) // self.page_size + 1
                del self.slots[-wanted:]

    def _beginning(self) -> bytes:
        size = self._start + self.pages * self.page_size - self._section - SECTION.size
        return self._head + _U64.pack(self._options) + SECTION.pack(BUFFER, 0, 0, size)

    def _tail(self, metadata: Metadata) -> tuple[bytes, int]:
        """The sections, and the offset of the options section."""
        at = self._start + self.pages * self.page_size
        made, places = b"", {}
        for number, content in _sections(metadata).items():
            places[number] = at + len(made)
            made += _section(number, content)
        options = at + len(made)
        return made + _section(OPTIONS, self._option_list(metadata, places)) + _section(STRINGS, b"\0"), options

    def _option_list(self, metadata: Metadata, places: Mapping[int, int]) -> bytes:
        listed = [(number, _U64.pack(place)) for number, place in places.items()]
        listed += [(CPUSTAT, f"CPU: {slot}\n{text}".encode() + b"\0") for slot, text in metadata.stats.items()]
        system = os.uname()
        listed += [
            (TRACECLOCK, metadata.clocks.encode() + b"\0"),
            (UNAME, f"{system.sysname} {system.nodename} {system.release} {system.machine}".encode() + b"\0"),
            (CPUCOUNT, _U32.pack(max(self.slots, default=0) + 1)),
            (WRITER, b"fprobe\0"),
            (TRACEID, os.urandom(8)),
            (BUFFER, self._buffer(metadata.clock)),
            (_DONE, bytes(8)),
        ]
        return b"".join(OPTION.pack(number, len(data)) + data for number, data in listed)

    def _buffer(self, clock: str) -> bytes:
        """The buffer option: the place of each slot's records after sorting."""
        cpus, at = b"", self._start
        found = [(slot, len(list(same))) for slot, same in groupby(sorted(self.slots))]
        for slot, count in found:
            cpus += CPU.pack(slot, at, count * self.page_size)
            at += count * self.page_size
        name = b"\0"  # the top-level instance
        return (
            _U64.pack(self._section)
            + name
            + clock.encode()
            + b"\0"
            + _U32.pack(self.page_size)
            + _U32.pack(len(found))
            + cpus
        )

    def _sort(self) -> None:
        """Sort the sub-buffers by slot. Follows the cycles of the permutation, to write each sub-buffer only once."""
        source = sorted(range(self.pages), key=self.slots.__getitem__)
        done = bytearray(self.pages)
        for first in range(self.pages):
            if done[first] or source[first] == first:
                continue
            displaced, at = self._page(first), first
            while source[at] != first:
                self._put(at, self._page(source[at]))
                done[at] = 1
                at = source[at]
            self._put(at, displaced)
            done[at] = 1

    def _page(self, number: int) -> bytes:
        return os.pread(self.descriptor, self.page_size, self._start + number * self.page_size)

    def _put(self, number: int, page: bytes) -> None:
        os.pwrite(self.descriptor, page, self._start + number * self.page_size)


def _opened(path: str) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FileExistsError(errno.EEXIST, "not a regular file; give another name with -o", path)
        os.fchmod(descriptor, 0o600)
        os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _sections(metadata: Metadata) -> dict[int, bytes]:
    """Section id -> content, for all sections except records, options and strings."""
    header_page, header_event = metadata.header_page.encode(), metadata.header_event.encode()
    header = b"header_page\0" + _sized(header_page) + b"header_event\0" + _sized(header_event)
    own = [_sized(for_readers(text).encode()) for text in metadata.formats.get("ftrace", ())]
    systems = {name: texts for name, texts in metadata.formats.items() if name != "ftrace"}
    events = _U32.pack(len(systems)) + b"".join(_system(name, texts) for name, texts in systems.items())
    return {
        HEADER_INFO: header,
        FTRACE_EVENTS: _U32.pack(len(own)) + b"".join(own),
        EVENT_FORMATS: events,
        KALLSYMS: _sized(metadata.symbols.encode("utf-8", "surrogateescape"), _U32),
        PRINTK: _sized(metadata.printk_formats.encode(), _U32),
        CMDLINES: _sized(metadata.cmdlines.encode("utf-8", "surrogateescape")),
    }


def _system(name: str, texts: Sequence[str]) -> bytes:
    formats = (_sized(for_readers(text).encode()) for text in texts)
    return name.encode() + b"\0" + _U32.pack(len(texts)) + b"".join(formats)


def _section(number: int, content: bytes) -> bytes:
    return SECTION.pack(number, 0, 0, len(content)) + content


def _sized(data: bytes, size: struct.Struct = _U64) -> bytes:
    return size.pack(len(data)) + data


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
