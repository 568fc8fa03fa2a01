"""Interface for keeping the pages in memory of the process that has started this one, and reads the records after its end."""

from __future__ import annotations

from typing import Protocol


class Shared(Protocol):
    """Memory of another process."""

    def map_pages(self, size: int) -> int:
        """Map `size` zero bytes for a memory file, for this process alone. Returns the address. Raises OSError."""

    def map_comms(self, size: int) -> int:
        """Map `size` bytes for the names of threads; processes may share them. Returns the address. Raises OSError."""


_shared: list[Shared] = []


def share(memory: Shared) -> None:
    """Keep the pages in `memory`. Must be called before anything is recorded."""
    _shared[:] = [memory]


def shared() -> Shared | None:
    """The memory for the pages; None if they are in a file of this process."""
    return _shared[0] if _shared else None
