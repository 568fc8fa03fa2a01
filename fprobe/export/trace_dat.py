"""Writing trace.dat, version 7, for trace-cmd, KernelShark and libtraceevent.

Sub-buffers are appended in the order in which they arrive; at the end they are sorted by trace array and slot, and compressed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fprobe.export import trace_dat_pages as pages
from fprobe.export.compression import NONE, algorithm
from fprobe.export.trace_dat_pages import GAP, Area, Owner
from fprobe.export.trace_dat_sections import BUFFER, MAGIC, SECTION, U32, U64, VERSION, Metadata, Region, tail
from sandbox.process import writing
from sandbox.process.descriptors import KeptDescriptor
from sandbox.process.writing import DISK_FULL, emptied, write_all

if TYPE_CHECKING:
    from ftrace.ring_buffer.buffer import Buffer
    from ftrace.ring_buffer.staging import Staging


class TraceDat:
    """A trace.dat that is being written. The file gets mode 0600; its old content is deleted.

    `page_size`: of a sub-buffer, in bytes; `buffers`: the number of trace arrays; `compression`: none, zlib or zstd;
    `metadata`: what is known when the recording begins, so that a file that is not finished can be read. Raises OSError: ELOOP
    for a symbolic link, EEXIST for any other file that is not regular, ENOSPC. Raises ValueError for an unknown compression.
    """

    def __init__(
        self, path: str, page_size: int, buffers: int = 1, compression: str = NONE, metadata: Metadata | None = None
    ) -> None:
        self._set_up(path, page_size, buffers, compression, metadata)
        self._kept = KeptDescriptor(emptied(path, locked=True), self._open_again)
        try:
            # What is written there at the end must fit a disk that is full then.
            write_all(self.descriptor, self._start.ljust(self._end, b"\0"))
        except OSError:
            self.close()
            raise

    @classmethod
    def reopened(cls, path: str, page_size: int, buffers: int, compression: str, metadata: Metadata) -> TraceDat | None:
        """A file whose writer has ended without finishing it. None if it was finished, or is another file. Raises OSError."""
        file = cls.__new__(cls)
        file._set_up(path, page_size, buffers, compression, metadata)
        file._kept = KeptDescriptor(writing.existing(path), file._open_again)
        if os.pread(file.descriptor, len(file._start), 0) != file._start:
            file.close()
            return None
        size = os.fstat(file.descriptor).st_size
        for number in range(len(file._gaps), (size - file._area.start) // page_size):
            owner = pages.owner_of(file._area.page(number))
            if owner is None:
                break
            file.owners.append(owner)
        file.truncate()
        return file

    @property
    def descriptor(self) -> int:
        """The descriptor of the file. Raises OSError(EBADF) if the program has closed it, and it cannot be opened again."""
        return self._kept.number

    def close(self) -> None:
        """Close the file, finished or not."""
        self._kept.close()

    def _open_again(self) -> int:
        descriptor = writing.existing(self._absolute, locked=True)
        os.lseek(descriptor, self._end, os.SEEK_SET)
        return descriptor

    def _set_up(self, path: str, page_size: int, buffers: int, compression: str, metadata: Metadata | None) -> None:
        self._how = algorithm(compression)
        self.path, self.page_size = path, page_size
        self._absolute = os.path.abspath(path)  # noqa: PTH100  # of a text; the program may change its directory
        self._gaps = [Owner(number, GAP) for number in range(1, buffers)]
        self.staging: Staging | None = None
        """See `Buffer.drain`."""
        self.owners = list(self._gaps)
        """The owner of each sub-buffer, in the order in which they were written."""
        version = self._how.version.encode() if self._how else b""
        self._head = MAGIC + VERSION + b"\0" + bytes((0, 8)) + U32.pack(page_size)
        self._head += compression.encode() + b"\0" + version + b"\0"
        at = len(self._head) + U64.size
        sections, options = _first_sections(metadata, page_size, at) if metadata else (b"", 0)
        self._start = self._head + U64.pack(options) + sections + SECTION.pack(BUFFER, 0, 0, 0)
        """The beginning of the file until it is finished: its options name no sub-buffer yet."""
        self._first = at + len(sections)
        self._start_of_pages = -(-(self._first + SECTION.size) // page_size) * page_size

    @property
    def _area(self) -> Area:
        return Area(self.descriptor, self._first, self._start_of_pages, self.page_size)

    @property
    def pages(self) -> int:
        """Number of sub-buffers written."""
        return len(self.owners) - len(self._gaps)

    @property
    def _end(self) -> int:
        return self._start_of_pages + len(self.owners) * self.page_size

    def newest(self, count: int) -> set[bytes]:
        """The sub-buffers that were written last, with their marks."""
        return {self._area.page(number) for number in range(len(self.owners))[len(self._gaps) :][-count:]}

    def truncate(self) -> None:
        """Cut off what was written after the last whole sub-buffer."""
        os.ftruncate(self.descriptor, self._end)
        os.lseek(self.descriptor, self._end, os.SEEK_SET)

    def add(self, slot: int, page: bytes, buffer: int = 0) -> None:
        """Append a sub-buffer of a slot of a trace array. If it raises OSError, nothing is appended."""
        try:
            write_all(self.descriptor, pages.owned(page, Owner(buffer, slot)))
        except OSError:
            self.truncate()
            raise
        self.owners.append(Owner(buffer, slot))

    def drain(self, buffer: Buffer, slot: int, number: int) -> None:
        """Move the full sub-buffers of a slot of a trace array. Raises OSError; an incomplete one is cut off."""
        try:
            buffer.drain(self.descriptor, slot, pages.mark(Owner(number, slot)), self.staging)
        finally:
            self._account(slot, number)

    def _account(self, slot: int, buffer: int) -> None:
        """Take over the sub-buffers of a slot that were written to the descriptor directly."""
        written = os.lseek(self.descriptor, 0, os.SEEK_CUR) - self._end
        self.owners += [Owner(buffer, slot)] * (written // self.page_size)
        if written % self.page_size:
            self.truncate()

    def finish(self, metadata: Metadata) -> int:
        """Write the other sections and close the file. Raises OSError.

        Returns the number of sub-buffers that were deleted to make space for the sections, because the disk is full.
        """
        try:
            dropped, regions, options = self._write_tail(metadata)
            pages.sort(self._area, self.owners)
            if self._how is not None:
                regions, options = self._compress(metadata, regions)
            pages.write_headers(self._area, regions, self._how)
            os.pwrite(self.descriptor, self._head + U64.pack(options), 0)
            return dropped
        finally:
            self.close()

    def _write_tail(self, metadata: Metadata) -> tuple[int, list[Region], int]:
        """Write the sections after the records. If the disk is full, they replace the newest sub-buffers.

        Returns the number of sub-buffers deleted, the places of the buffers, and that of the options.
        """
        before = self.pages
        while True:
            self.truncate()
            regions = pages.layout(self._area, self.owners, len(metadata.buffers))
            sections, options = tail(metadata, regions, self.page_size, self._end, None)
            try:
                write_all(self.descriptor, sections)
                return before - self.pages, regions, options
            except OSError as full:
                if full.errno not in DISK_FULL or not self.pages:
                    raise
                wanted = len(sections) // self.page_size + 1
                del self.owners[max(len(self._gaps), len(self.owners) - wanted) :]

    def _compress(self, metadata: Metadata, regions: Sequence[Region]) -> tuple[list[Region], int]:
        """Compress the sub-buffers, and write the sections after them. Returns the places of the buffers and of the options."""
        assert self._how is not None
        found = pages.compress(self._area, regions, self._how)
        end = found[-1].header + SECTION.size + found[-1].size
        sections, options = tail(metadata, found, self.page_size, end, self._how)
        os.lseek(self.descriptor, end, os.SEEK_SET)
        write_all(self.descriptor, sections)  # overwrites existing data: a full disk has space for that
        os.ftruncate(self.descriptor, end + len(sections))
        return found, options


def _first_sections(metadata: Metadata, page_size: int, at: int) -> tuple[bytes, int]:
    """The sections before the sub-buffers, and the place of the options: buffers without sub-buffers, all with one header."""
    regions = [Region(0, 0, []) for _ in metadata.buffers]
    size = len(tail(metadata, regions, page_size, at, None)[0])
    regions = [Region(at + size, 0, []) for _ in metadata.buffers]
    return tail(metadata, regions, page_size, at, None, identity=bytes(8))
