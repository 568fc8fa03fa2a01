"""Sub-buffers in a pipe: the process that records writes them, and its parent makes a file of columns of them.

A frame begins with 16 bytes: of a sub-buffer, which has the mark of its owner, or of a message, which has none. The file
thus costs the program no time, and outlives it.
"""

from __future__ import annotations

import errno
import json
import os
import pickle
import select
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fprobe.export.columns.layout import Origin
from fprobe.export.columns.parquet import ParquetFile, Sink
from fprobe.export.formats import EventFormat, parse_format
from fprobe.export.trace_dat_pages import Owner, mark, owned, owner_of
from fprobe.export.trace_dat_reader import Symbols
from fprobe.export.trace_dat_sections import Metadata
from ftrace.ring_buffer.staging import BATCH
from ftrace.tracing.events import dynevent
from sandbox.process.writing import DISK_FULL, write_all

if TYPE_CHECKING:
    from ftrace.ring_buffer.buffer import Buffer
    from ftrace.ring_buffer.staging import Staging
    from sandbox.process.descriptors import KeptDescriptor

_HEAD = struct.Struct("<QII")
"""Of a message: the number of bytes that follow, its kind, and 0, where a sub-buffer has the mark."""
_END, _TOLD = 0, 1
_PIPE = 1 << 20
_POLLING = 0.05


class Told(NamedTuple):
    """What the writer knows of the records. `rings`: names of the trace arrays, in the order of their numbers."""

    page_size: int
    rings: list[str]
    metadata: Metadata


class PageStream:
    """The writer's end, in place of a trace.dat: see `TraceDat`. `rows`: of the file, when it is finished."""

    compression = "none"

    def __init__(self, path: str, pages: KeptDescriptor, reply: KeptDescriptor) -> None:
        self.path, self._kept, self._reply = path, pages, reply
        self.page_size, self.pages = 0, 0
        self.rows = self.unwritten = 0
        self._rings: list[str] = []
        self._metadata: Callable[[], Metadata] | None = None
        self._known = 0
        self.staging: Staging | None = None
        """See `Buffer.drain`."""

    @property
    def descriptor(self) -> int:
        """The pipe. Raises OSError(EBADF) if the program has closed it, and it cannot be opened again."""
        return self._kept.number

    def begin(self, page_size: int, rings: Sequence[str], metadata: Callable[[], Metadata]) -> None:
        """Say what the records are; again when there are more events."""
        self.page_size, self._rings, self._metadata = page_size, list(rings), metadata
        self._tell(metadata())

    def drain(self, buffer: Buffer, slot: int, number: int) -> None:
        """Move the full sub-buffers of a slot of a trace array."""
        if self._metadata is not None and len(dynevent.dynamic_events()) != self._known:
            self._tell(self._metadata())
        self.pages += buffer.drain(self.descriptor, slot, mark(Owner(number, slot)), self.staging) // self.page_size

    def add(self, slot: int, page: bytes, buffer: int = 0) -> None:
        """Write a sub-buffer of a slot of a trace array."""
        write_all(self.descriptor, owned(page, Owner(buffer, slot)))
        self.pages += 1

    def finish(self, metadata: Metadata) -> int:
        """Wait for the file. Raises OSError if it could not be finished. No sub-buffer is dropped."""
        self._tell(metadata)
        write_all(self.descriptor, _HEAD.pack(0, _END, 0))
        self._kept.close()
        answer = json.loads(
            _all_of(self._reply.number) or b'{"error": [5, "the process that writes the file has ended"]}'
        )
        if "error" in answer:
            raise OSError(*answer["error"], self.path)
        self.rows, self.unwritten = answer["rows"], answer["unwritten"]
        return 0

    def _tell(self, metadata: Metadata) -> None:
        self._known = len(dynevent.dynamic_events())
        content = pickle.dumps(Told(self.page_size, self._rings, metadata))
        write_all(self.descriptor, _HEAD.pack(len(content), _TOLD, 0) + content)


def _all_of(descriptor: int) -> bytes:
    found = b""
    while data := os.read(descriptor, 1 << 16):
        found += data
    return found


class Known:
    """What the writer has told. `comm_of`: the name of a thread."""

    def __init__(self, comm_of: Callable[[int], str | None]) -> None:
        self.formats: Mapping[int, EventFormat] = {}
        self._symbols = Symbols("")
        self._comm_of = comm_of

    def learn(self, metadata: Metadata) -> None:
        """Take the formats and symbols."""
        found = [parse_format(group, text) for group, texts in metadata.formats.items() for text in texts]
        self.formats = {event.id: event for event in found}
        self._symbols = Symbols(metadata.symbols)

    def name(self, address: int) -> str:
        return self._symbols.name(address)

    def comm(self, tid: int) -> str:
        return self._comm_of(tid) or "<...>"


class PageReader:
    """The reader's end: makes the file, in a thread. `comm_of`: the name of a thread; `lost`: the number of records lost.

    `sink`: the file, which is open; `reply`: where the writer waits for the end.
    """

    def __init__(
        self, sink: Sink, descriptor: int, reply: int, comm_of: Callable[[int], str | None], lost: Callable[[], int]
    ) -> None:
        self._sink, self._descriptor, self._reply = sink, descriptor, reply
        self._known, self._lost = Known(comm_of), lost
        self._writer_ended = threading.Event()
        self._data = bytearray()
        self._newest = deque[bytes](maxlen=BATCH)
        """The sub-buffers that came last, with their marks."""
        self._told: Told | None = None
        self._file: ParquetFile | None = None
        self.process: Origin | None = None
        """The process that records."""
        self.error: Exception | None = None
        self.is_finished = False
        self._thread = threading.Thread(target=self._work, name="fprobe-columns", daemon=True)

    def start(self, process: Origin) -> None:
        """Begin to read."""
        self.process = process
        self._thread.start()

    def end(self, rest: Callable[[Sequence[str]], Iterator[tuple[int, int, bytes]]]) -> None:
        """The writer has ended. If it has not finished the file, `rest` has its last sub-buffers, by the names of the rings.

        Raises what went wrong, if the writer was not told.
        """
        self._writer_ended.set()
        self._thread.join()
        if self.is_finished or self._told is None:
            return
        try:
            if self.error is None:
                for number, slot, page in rest(self._told.rings):
                    if page not in self._newest:
                        self._made.add(slot, page, number, self._pid)
        except OSError as error:
            self.error = error
        self._finish()
        if self.error is not None:
            raise self.error

    @property
    def rows(self) -> int:
        return self._made.rows

    @property
    def unwritten(self) -> int:
        """Rows that a full disk has cost."""
        return self._made.unwritten

    @property
    def _pid(self) -> int | None:
        return self.process.pid if self.process is not None else None

    @property
    def _made(self) -> ParquetFile:
        if self._file is None:
            assert self._told is not None
            clock = self._told.metadata.buffers[0].clock
            names = [each.name for each in self._told.metadata.buffers]
            size = self._told.page_size
            self._file = ParquetFile(self._sink, self._known, clock=clock, page_size=size, instances=names)
        return self._file

    def _work(self) -> None:
        while self._more():
            for kind, content in self._frames():
                if kind == _END:
                    self._finish()
                    self._answer()
                    return
                self._take(kind, content)

    def _more(self) -> bool:
        """Read what is there. False at the end of everything."""
        while not select.select([self._descriptor], [], [], _POLLING)[0]:
            if self._writer_ended.is_set():
                return False
        data = os.read(self._descriptor, _PIPE)
        self._data += data
        return bool(data)

    def _frames(self) -> Iterator[tuple[int | Owner, bytes]]:
        """The frames that are whole: those of messages by their kinds, and of sub-buffers by their owners."""
        at, data = 0, bytes(self._data)
        while at + _HEAD.size <= len(data):
            owner = owner_of(data[at : at + _HEAD.size])
            size, kind, _ = _HEAD.unpack_from(data, at)
            start = at if owner else at + _HEAD.size
            end = start + (self._told.page_size if owner and self._told else size)
            if end > len(data):
                break
            yield owner or kind, data[start:end]
            at = end
        del self._data[:at]

    def _take(self, kind: int | Owner, content: bytes) -> None:
        """Take a frame; after an error, nothing: the writer must not have to wait."""
        if self.error is not None:
            return
        try:
            if isinstance(kind, Owner):
                self._newest.append(content)
                self._made.add(kind.slot, content, kind.buffer, self._pid)
            else:
                self._told = pickle.loads(content)
                self._known.learn(self._told.metadata)
        except Exception as error:  # of this thread: the command says it
            self.error = error

    def _finish(self) -> None:
        """Write the end of the file, also after an error: what was written before is whole then."""
        try:
            self._made.finish(self._lost(), [self.process] if self.process else [])
        except Exception as error:
            self.error = self.error or error
        self.is_finished = True

    def _answer(self) -> None:
        answer: dict[str, Any] = {"rows": self._made.rows, "unwritten": self._made.unwritten}
        if isinstance(self.error, OSError) and self.error.errno in DISK_FULL:
            answer = {"error": [self.error.errno, self.error.strerror]}
        elif self.error is not None:
            answer = {"error": [errno.EIO, f"{type(self.error).__name__}: {self.error}"]}
        write_all(self._reply, json.dumps(answer).encode())
        os.close(self._reply)
