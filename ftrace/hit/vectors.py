"""Where a hit saves the vector registers, for Python and C handlers that read them (ftrace.handlers.floats)."""

from __future__ import annotations

from sandbox.native import native, null, u64
from sandbox.threads.tasks import current


@native
def saved_vectors() -> u64:
    """Where the running thread's vector registers are kept | their distance in units of 16 bytes; 0: they are not."""
    task = current()
    return task.vectors if task != null else 0
