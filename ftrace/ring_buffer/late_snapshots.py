"""Snapshots of a moment in the past: which records of the two rings they moved.

A queued histogram decides only some milliseconds after a hit that its action takes a snapshot. The rings are then exchanged
late, and readers put each record on the side where an exchange at the hit would have left it.
"""

from __future__ import annotations

from bisect import bisect_left

MOST = 4096
"""Snapshots that are remembered; of older ones, an even number is forgotten."""


class LateSnapshots:
    """The snapshots of the past, for as long as nothing else exchanges or replaces the rings.

    `live`, `spare`: the addresses of the rings at the time `began`.
    """

    def __init__(self, live: int, spare: int, began: int) -> None:
        self.rings = (live, spare)
        """The rings that are expected now: live and spare."""
        self.exchanged = -1
        """When the rings were last exchanged; records of before are safe from being overwritten."""
        self._old_spare, self._began = spare, began
        self._stamps: list[int] = []
        self._emptied: list[tuple[int, int]] = []

    def add(self, stamp: int) -> None:
        """A snapshot was taken at this time."""
        self._stamps.append(stamp)
        if len(self._stamps) > MOST:
            del self._stamps[:2]
            self._emptied = [(when, count - 2) for when, count in self._emptied if count >= 2]

    def empty(self, now: int) -> None:
        """The live buffer was emptied. What it had in the spare ring is in neither of the two from now on."""
        self._emptied.append((now, len(self._stamps)))

    def in_snapshot(self, ring: int, stamp: int) -> bool:
        """Whether a record of a ring is in the snapshot. A record of the very time of a snapshot caused it, and is in it."""
        return self._is_spare(ring, stamp, len(self._stamps)) and not self._is_gone(ring, stamp)

    def in_buffer(self, ring: int, stamp: int) -> bool:
        """Whether a record of a ring is in the live buffer."""
        return not self._is_spare(ring, stamp, len(self._stamps)) and not self._is_gone(ring, stamp)

    def _is_spare(self, ring: int, stamp: int, count: int) -> bool:
        """Whether a record was in the snapshot after the first `count` snapshots."""
        moves = max(count - bisect_left(self._stamps, stamp), 0)
        was_spare = ring == self._old_spare and stamp <= self._began
        return (moves + was_spare) % 2 == 1

    def _is_gone(self, ring: int, stamp: int) -> bool:
        return any(stamp <= when and not self._is_spare(ring, stamp, count) for when, count in self._emptied)
