"""What is watched from one rest to the next: a probe that nobody has touched meanwhile has seen or missed every call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Watched:
    """A registered probe. `names`: the functions it is on; `exact`: whether each call is one hit.

    `notes`: what its handlers count: entries, exits, disagreements.
    """

    def __init__(self, probe: Any, names: list[str], notes: Any, exact: bool = True) -> None:
        self.probe = probe
        self.names = names
        self.notes = notes
        self.exact = exact
        self._before: tuple[int, int] | None = None

    def touched(self) -> None:
        """It is being changed: what is counted until the next rest says nothing."""
        self._before = None

    @property
    def is_steady(self) -> bool:
        """Whether nobody has touched it since the last rest."""
        return self._before is not None

    def counted(self) -> int:
        """Hits that have been seen or missed."""
        raise NotImplementedError

    @property
    def is_on(self) -> bool:
        """Whether hits count."""
        raise NotImplementedError

    def told(self) -> list[int]:
        """What must not change any more once it is unregistered."""
        return list(self.notes)

    def compared(self, calls: Mapping[str, int]) -> list[str]:
        """Complaints about what it has counted since the last rest; to be asked while nobody calls."""
        made, counted = sum(calls[name] for name in self.names), self.counted()
        before, self._before = self._before, (made, counted)
        found = [f"disagreements in {self}: {list(self.notes)}"] if self.notes[2] else []
        if not self.exact or before is None:
            return found
        wanted = made - before[0] if self.is_on else 0
        if counted - before[1] != wanted:
            found.append(f"{wanted} calls, but {counted - before[1]} hits and misses of {self}")
        return found
