"""Parquet files of records, written while they are recorded: columns as in `layout`, read by any engine.

Sub-buffers come in as for a trace.dat. A row group is written when enough rows wait.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import resource
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING, Any

from fprobe.export.columns.layout import Origin, description, wall_clock_offset
from fprobe.export.columns.pages import Batch, Kinds, Pages
from fprobe.export.columns.tables import Place, Source, Tables
from ftrace.hit.ring_buffer.layout import COMMIT_MASK, HEADER, MISSED_EVENTS, MISSED_STORED
from ftrace.ring_buffer.clock import find as find_clock
from sandbox.process import writing
from sandbox.process.writing import DISK_FULL, write_all

if TYPE_CHECKING:
    import pyarrow

MISSING = "Parquet needs the package pyarrow, which cannot be imported ({error}): pip install 'fprobe[arrow]'"
_ROWS = 1 << 16
"""Rows of events in a row group."""
_PENDING = 1 << 18
"""Bytes of consecutive sub-buffers of a slot that are taken at once."""
_MOST_WAITING = 512
"""Tables of events that wait to be written."""
_SLACK = 1 << 16
"""Bytes of a row group besides its columns, and of the end of the file besides what it says of row groups."""
_OF_A_COLUMN = 512
"""Bytes that the end of the file has of a column in a row group, at most."""
_KEEP_SIZE = 1
_ORDERED = ["time_ns", "duration_ns", "pid", "tid"]
"""Columns of which a row group tells its least and greatest: engines skip groups by them. Those of all take too long."""


def check_installed() -> None:
    """Raise ModuleNotFoundError, with what to do, if pyarrow cannot be imported. In this process it then does without pandas.

    pyarrow looks for pandas once, when it converts the first value, and imports it if it is installed: 40 MB.
    """
    try:
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError as error:
        raise ModuleNotFoundError(MISSING.format(error=error)) from None
    sys.meta_path.insert(0, without := _WithoutPandas())
    try:
        pyarrow.array([0])
    finally:
        sys.meta_path.remove(without)


class _WithoutPandas(MetaPathFinder):
    """Says that there is no pandas."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        """See `MetaPathFinder`. Raises ModuleNotFoundError for pandas."""
        if fullname == "pandas":
            raise ModuleNotFoundError("not needed here", name=fullname)


def check_found() -> None:
    """The same without the time that the import takes. Raises ValueError."""
    try:
        is_there = importlib.util.find_spec("pyarrow") is not None
    except ValueError:  # something has replaced it by what is no module
        is_there = False
    if not is_there:
        raise ValueError(MISSING.format(error="it is not there"))


class ParquetFile:
    """A file that is being written.

    `clock`: of the records; `page_size`: of a sub-buffer; `instances`: names of the trace arrays, by their numbers;
    `anchored`: whether the clock is the present one of this machine, so that times can be those of the wall clock.

    Check first that pyarrow is there: `check_installed`.
    """

    def __init__(
        self,
        sink: Sink,
        source: Source,
        *,
        clock: str = "local",
        page_size: int = 4096,
        instances: Iterable[str] = ("",),
        anchored: bool = True,
    ) -> None:
        self.page_size, self.pages = page_size, 0
        self._source, self._clock = source, clock
        self._instances = list(instances)
        self._offset = wall_clock_offset() if anchored and find_clock(clock).in_ns else None
        self._places: list[Place] = []
        self._origins: dict[Place, int] = {}
        self._kinds = Kinds()
        self._pages = Pages(self._offset or 0, self._write_calls, self._kinds)
        self._kinds.know(source.formats)
        self._known = len(source.formats)
        self._tables: Tables | None = None
        self._pending, self._pending_of = bytearray(), (0, 0)
        self._events: list[pyarrow.Table] = []
        self._file = RowGroups(sink)

    def add(self, slot: int, page: bytes, buffer: int = 0, pid: int | None = None) -> None:
        """Take a sub-buffer of a slot of a trace array. Raises ValueError if it is damaged."""
        self.pages += 1
        key = self._origin(Place(pid, self._instances[buffer])), slot
        if key != self._pending_of or len(self._pending) >= _PENDING:
            self._take_pending()
            self._pending_of = key
        self._pending += page

    def _take_pending(self) -> None:
        if not self._pending:
            return
        data, self._pending = self._pending, bytearray()
        origin, slot = self._pending_of
        if len(self._source.formats) != self._known:
            self._kinds.know(self._source.formats)
            self._known = len(self._source.formats)
        batch = self._pages.take(origin, slot, data, self.page_size)
        missing = [_lost_before(data[at : at + self.page_size]) for at in range(0, len(data), self.page_size)]
        self._events += losses(self._made, missing, batch, origin)
        self._events += self._made.events(batch, origin)
        if sum(each.num_rows for each in self._events) >= _ROWS or len(self._events) >= _MOST_WAITING:
            self._write_events()

    def finish(self, lost: int = 0, processes: Iterable[Origin] = ()) -> None:
        """Write the rest and the end of the file. Raises OSError if even that has no space, ValueError if the rest is damaged."""
        try:
            self._take_pending()
        finally:
            self._end(lost, processes)

    def _end(self, lost: int, processes: Iterable[Origin]) -> None:
        try:
            self._pages.end()
            self._write_calls()
            self._write_events()
            self._file.finish(self._made.columns.schema, description(self._clock, self._offset, processes, lost))
        finally:
            self._file.close()

    @property
    def rows(self) -> int:
        """Rows in the file."""
        return self._file.rows

    @property
    def unwritten(self) -> int:
        """Rows that a full disk has cost."""
        return self._file.unwritten

    @property
    def _made(self) -> Tables:
        """Made when the first rows are: events that are defined until then get their columns."""
        if self._tables is None:
            self._tables = Tables(self._source, self._pages, self._places, self._offset or 0)
        return self._tables

    def _origin(self, place: Place) -> int:
        if place not in self._origins:
            self._origins[place] = len(self._places)
            self._places.append(place)
        return self._origins[place]

    def _write_calls(self) -> None:
        if self._pages.rows.count:
            self._file.write(self._made.calls())

    def _write_events(self) -> None:
        if self._events:
            tables, self._events = self._events, []
            self._file.write(joined(tables))


def joined(tables: Sequence[pyarrow.Table]) -> pyarrow.Table:
    """Tables with the same columns as one."""
    import pyarrow as pa

    return pa.concat_tables(tables).unify_dictionaries().combine_chunks()


def losses(tables: Tables, numbers: Iterable[int | None], batch: Batch, origin: int) -> Iterator[pyarrow.Table]:
    """Rows for the records that are missing before the sub-buffers of a batch. `numbers`: of each; None if it is unknown."""
    missing = [number for number in numbers if number != 0]
    if missing:
        for number, each in zip(missing, batch.after_losses(), strict=False):
            yield tables.lost(each.stamp, each.tid, number, origin)


def _lost_before(page: bytearray) -> int | None:
    """Number of records missing before a sub-buffer; None if it is unknown."""
    word = int.from_bytes(page[8:16], "little")
    if not word & MISSED_EVENTS:
        return 0
    at = HEADER + (word & COMMIT_MASK)
    is_stored = word & MISSED_STORED and at + 8 <= len(page)
    return int.from_bytes(page[at : at + 8], "little") if is_stored else None


class RowGroups:
    """A file as rows. After a full disk it only counts what is not written: see `Sink`."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.rows = 0
        self.failure: OSError | None = None
        """The error that has ended writing: a full disk."""
        self.unwritten = 0
        """Rows that were not written, because of it."""
        self.finish, self.close = sink.finish, sink.close

    def write(self, table: pyarrow.Table) -> None:
        """Write a row group. Raises OSError for anything but a full disk."""
        if self.failure is None:
            try:
                self._sink.write(table)
                self.rows += table.num_rows
                return
            except OSError as error:
                if error.errno not in DISK_FULL:
                    raise
                self.failure = error
        self.unwritten += table.num_rows


class Sink:
    """The file itself. Before each row group the space for the end is reserved, so that a full disk leaves a whole file.

    `descriptor`: what `opened` has returned before, if anything. The file gets mode 0600, and its old content is deleted, when
    the first row group, or the end, is written. Raises OSError: ELOOP for a symbolic link, EEXIST for what is no regular file,
    EBUSY if another process is writing it.
    """

    def __init__(self, path: str, descriptor: int | None = None) -> None:
        self._path = path
        self._descriptor = opened(path) if descriptor is None else descriptor
        self._writer: Any = None
        self._stream: Any = None
        self._groups = 0

    def write(self, table: pyarrow.Table) -> None:
        """Write a row group. Raises OSError before anything is written if there is no space for it."""
        self._begin(table.schema)
        self._reserve(table.nbytes + _SLACK + self._size_of_end(table.num_columns))
        self._writer.write_table(table, row_group_size=table.num_rows)
        self._groups += 1

    def finish(self, schema: pyarrow.Schema, metadata: dict[str, str]) -> None:
        """Write the end."""
        self._begin(schema)
        self._writer.add_key_value_metadata(metadata)
        self._writer.close()
        self._stream.flush()
        os.ftruncate(self._descriptor, os.lseek(self._descriptor, 0, os.SEEK_CUR))

    def close(self) -> None:
        """Close the file, which another process may write then."""
        os.close(self._descriptor)

    def _begin(self, schema: pyarrow.Schema) -> None:
        if self._writer is None:
            import pyarrow as pa
            import pyarrow.parquet as pq

            writing.empty(self._descriptor)
            self._reserve(_SLACK + self._size_of_end(len(schema)))
            self._stream = pa.PythonFile(_Raw(self._descriptor), mode="w")
            texts = [field.name for field in schema if pa.types.is_dictionary(field.type)]
            self._writer = pq.ParquetWriter(
                self._stream,
                schema,
                compression="zstd",
                store_schema=False,
                use_dictionary=texts,
                write_statistics=_ORDERED,
            )

    def _size_of_end(self, columns: int) -> int:
        return _SLACK + (self._groups + 1) * (columns + 64) * _OF_A_COLUMN

    def _reserve(self, size: int) -> None:
        at = os.lseek(self._descriptor, 0, os.SEEK_CUR)
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        if limit != resource.RLIM_INFINITY and at + size > limit:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), self._path)
        _allocate(self._descriptor, at, size, self._path)


class _Raw:
    """A descriptor as the file that pyarrow writes to."""

    closed = False

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, data: Any) -> int:
        write_all(self._descriptor, data)
        return len(data)

    def tell(self) -> int:
        return os.lseek(self._descriptor, 0, os.SEEK_CUR)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def _allocate(descriptor: int, at: int, size: int, path: str) -> None:
    """Reserve space after the end of a file. A file system that cannot do that has none reserved."""
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    library.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    if library.fallocate(descriptor, _KEEP_SIZE, at, size) and ctypes.get_errno() in DISK_FULL:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)


def opened(path: str) -> int:
    """A descriptor of the file, which no other process writes: see `Sink`."""
    return writing.opened(path, locked=True)
