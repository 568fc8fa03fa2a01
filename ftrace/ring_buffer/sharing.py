"""Pages in memory of another process, which has started this one and reads what it recorded, whatever becomes of it."""

from __future__ import annotations

from typing import Protocol


class Shared(Protocol):
    """Such memory."""

    def map_pages(self, size: int) -> int:
        """Address of `size` zero bytes, which nobody else has, for a memory file. Raises OSError."""

    def map_comms(self, size: int) -> int:
        """Address of `size` bytes for the names of threads; its processes may have the same. Raises OSError."""


_shared: list[Shared] = []


def share(memory: Shared) -> None:
    """Keep the pages there. Call it before anything has been recorded."""
    _shared[:] = [memory]


def shared() -> Shared | None:
    """Where the pages are to be kept, if not in a file of this process."""
    return _shared[0] if _shared else None
