"""saved_cmdlines: the names of the threads that records are of.

A thread is shown by the name that it has; one that has ended by the last that was shown, or that with which it recorded first.
"""

from __future__ import annotations

from pathlib import Path

from ftrace.ring_buffer.arena import arena

UNKNOWN = "<...>"
_CAPACITY = 4096


class SavedCmdlines:
    """Names by thread id."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}

    def find(self, tid: int) -> str:
        """The name of a thread, `<...>` for one that was never seen."""
        if tid == 0:
            return "<idle>"
        name = _comm(tid) or self._names.get(tid) or arena().comm(tid)
        if name is None:
            return UNKNOWN
        self.save(tid, name)
        return name

    def save(self, tid: int, name: str) -> None:
        """Keep the name of a thread; of too many the one that was kept first is forgotten."""
        names = self._names
        if tid not in names and len(names) >= _CAPACITY:
            del names[next(iter(names))]
        names[tid] = name

    def read(self) -> str:
        """The file saved_cmdlines: `TID NAME` for each line."""
        return "".join(f"{tid} {name}\n" for tid, name in sorted(self._names.items()))


def _comm(tid: int) -> str | None:
    try:
        return Path(f"/proc/self/task/{tid}/comm").read_text("utf-8", "surrogateescape").removesuffix("\n")
    except OSError:
        return None


saved_cmdlines = SavedCmdlines()
"""Those of this process."""
