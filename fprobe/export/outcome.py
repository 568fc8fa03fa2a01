"""What a recording says at its end: how much there is in the file, and what is missing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from sandbox.process.writing import DISK_FULL


def losses(lost: int, dropped_pages: int, failure: OSError | None = None, unwritten: int = 0) -> str:
    """What is missing, in words."""
    parts = [f"{lost:,} records lost"] if lost else []
    if failure is not None:
        parts.append(f"{failure.strerror}: records after that are missing")
    if dropped_pages:
        parts.append(f"{dropped_pages} pages of the newest records were dropped: the disk is full")
    if unwritten:
        parts.append(f"the disk is full: {unwritten:,} rows are missing")
    return "; ".join(parts) or "nothing lost"


class Heir(Protocol):
    """The process that finishes the file if the one that records does not."""

    def can_write_after(self, failed: OSError) -> bool:
        """Whether that process can write though this one cannot."""
        ...


class Outcome(ABC):
    """The outcome of a recording, during it and at its end."""

    lost: int
    """Records that were overwritten, or dropped before they could be written."""
    failure: OSError | None = None
    """The error that ended writing, such as a full disk."""
    left: OSError | None = None
    """The error of this process alone, for which another one finishes the file when this one has ended."""
    heir: Heir | None = None
    """What tells whether there is one."""
    dropped_pages = 0
    """Sub-buffers that were dropped so that the rest of the file fits."""

    @property
    @abstractmethod
    def size(self) -> str:
        """How much is in the file."""

    @property
    @abstractmethod
    def unwritten(self) -> int:
        """Rows that did not fit into a file of columns."""

    @property
    def text(self) -> str:
        """A summary: how much was written, and what is missing."""
        if self.left is not None:
            return f"finished when the program has ended, since it cannot be written here: {self.left.strerror}"
        return f"{self.size}; {losses(self.lost, self.dropped_pages, self.failure, self.unwritten)}"

    @property
    def is_written(self) -> bool:
        """Whether nothing has ended writing."""
        return self.failure is None and self.left is None

    @property
    def is_incomplete(self) -> bool:
        """Whether a full disk has cost records."""
        return self.failure is not None or bool(self.dropped_pages) or bool(self.unwritten)

    def fail(self, failed: OSError) -> None:
        """Write no more. Raises the error if it is neither that of a full disk nor one that another process does not have."""
        if self.heir is not None and self.heir.can_write_after(failed):
            self.left = failed
            return
        if failed.errno not in DISK_FULL:
            raise failed
        self.failure = failed
