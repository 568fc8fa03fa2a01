"""The sub-buffers of a thread's slot in the memory of another process, copied when the next one has begun.

Nothing waits for that, and it takes no time of the process; what was overwritten before is counted as lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ftrace.ring_buffer import pages
from ftrace.ring_buffer.pages import Page
from ftrace.ring_buffer.view import DROPPED, RingView


class Taken(NamedTuple):
    """A sub-buffer, in which lost events are marked, and the number of those that are missing before it."""

    data: bytes
    lost: int


@dataclass
class SlotPages:
    """Reads a slot. `number`: its slot in the file."""

    view: RingView
    slot: int
    number: int
    sequence: int = 0
    page: int | None = None
    """The next sub-buffer to be read: its number, and the page that it begins with."""
    expected: int = 0
    """Number of the next event."""
    dropped: int = 0
    records: int = 0

    def take(self, *, with_newest: bool) -> Iterator[Taken]:
        """The sub-buffers that follow. The newest one is being written."""
        found = self.view.pages(self.slot, self.sequence, self.page)
        for at, page in enumerate(found if with_newest else found[:-1]):
            held = _count(page, found[at + 1] if at + 1 < len(found) else None)
            if held:
                lost = page.first - self.expected + page.lost - self.dropped
                yield Taken(pages.marked(page.data, lost), lost)
            self.records += held
            self.expected, self.dropped = page.first + held, page.lost
        if found:
            self.sequence, self.page = found[-1].sequence + with_newest, None if with_newest else found[-1].number

    @property
    def lost(self) -> int:
        """Events that are not in the file, although later ones are, or that were never written."""
        never = sum(self.view.slot_word(self.slot, field) for field in ("commit_overrun", *DROPPED))
        return self.expected - self.records + never


def _count(page: Page, following: Page | None) -> int:
    """Number of events in a sub-buffer."""
    if following is not None and following.sequence == page.sequence + 1:
        return following.first - page.first
    return pages.count(page.data)
