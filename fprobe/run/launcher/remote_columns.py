"""Records of attached processes as rows of a Parquet file, while they are made: `fprobe record -p -o FILE.parquet`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fprobe.export.columns.layout import Origin
from fprobe.export.columns.parquet import ParquetFile, Sink
from fprobe.export.columns.stream import Known
from fprobe.export.trace_dat_sections import Metadata


class ColumnsFile:
    """In place of a TraceDat. `metadata`: what is known of the records now; `edition`: a number that changes with it."""

    def __init__(
        self, path: str, comm_of: Callable[[int], str], metadata: Callable[[], Metadata], edition: Callable[[], int]
    ) -> None:
        self.path, self.pages = path, 0
        self._metadata, self._edition, self._learned = metadata, edition, 0
        self._known = Known(comm_of)
        self._file = ParquetFile(Sink(path), self._known)

    def learn(self) -> None:
        """Take events that have been defined, and libraries that have been loaded, since the last call."""
        if self._edition() != self._learned:
            self._learned = self._edition()
            self._known.learn(self._metadata())

    def add(self, slot: int, page: bytes, pid: int) -> None:
        """Take a sub-buffer of a thread of a process."""
        self.pages += 1
        self._file.add(slot, page, pid=pid)

    def finish(self, lost: int, processes: Iterable[Origin]) -> None:
        """Write the end of the file. Raises OSError."""
        self.learn()
        self._file.finish(lost, processes)

    @property
    def rows(self) -> int:
        """Rows in the file."""
        return self._file.rows

    @property
    def unwritten(self) -> int:
        """Rows that a full disk has cost."""
        return self._file.unwritten
