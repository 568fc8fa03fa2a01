"""What of the address space is taken, by /proc/thread-self/maps: where the first thread has ended, /proc/self/maps is empty."""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from heapq import merge
from itertools import takewhile

from sandbox.memory.pages import PAGE
from sandbox.process.shared_text import text_mutex

_LOWEST, _HIGHEST = 1 << 20, 1 << 47
_STACK_GROWTH, _HEAP_GROWTH = 64 << 20, 256 << 20


def mappings() -> list[tuple[int, int, str, str]]:
    """The process's mappings as (start, end, permissions, path), ascending. The kernel writes `\\012` for a newline in a path."""
    result = []
    with open(  # noqa: PTH123 (hot enough)
        "/proc/thread-self/maps", encoding="utf-8", errors="surrogateescape", newline="\n"
    ) as maps:
        for line in maps:
            bounds, permissions, _offset, _device, _inode, *path = line.split(maxsplit=5)
            start, _, end = bounds.partition("-")
            result.append((int(start, 16), int(end, 16), permissions, path[0].removesuffix("\n") if path else ""))
    return result


class AddressSpace:
    """What was taken when this was made, and what has been taken of it since."""

    def __init__(self) -> None:
        spans = [_with_growth(start, end, path) for start, end, _permissions, path in mappings()]
        self._starts = [start for start, _ in spans]
        self._ends = [end for _, end in spans]

    def free(self, page: int) -> bool:
        """Whether the page at this address is free."""
        index = bisect_right(self._starts, page + PAGE - 1) - 1
        return index < 0 or self._ends[index] <= page

    def first_free(self, low: int, high: int) -> int | None:
        """The lowest free page that lies in [low, high) altogether."""
        page = (low + PAGE - 1) & -PAGE
        while page + PAGE <= high:
            index = bisect_right(self._starts, page + PAGE - 1) - 1
            if index < 0 or self._ends[index] <= page:
                return page
            page = (self._ends[index] + PAGE - 1) & -PAGE
        return None

    def near(self, address: int, size: int, lowest: int, highest: int) -> Iterator[int]:
        """Pages in [lowest, highest] where `size` free bytes begin: in each gap the nearest to `address`, nearest gap first."""
        middle = bisect_left(self._starts, address)
        below = (at for gap in range(middle, -1, -1) for at in self._last(gap, size, highest))
        above = (at for gap in range(middle + 1, len(self._starts) + 1) for at in self._first(gap, size, lowest))
        return merge(
            takewhile(lambda at: at >= lowest, below),
            takewhile(lambda at: at <= highest, above),
            key=lambda at: abs(at - address),
        )

    def _bounds(self, gap: int) -> tuple[int, int]:
        """Of the free space before mapping number `gap`: whole pages."""
        start = self._ends[gap - 1] if gap else _LOWEST
        end = self._starts[gap] if gap < len(self._starts) else _HIGHEST - PAGE
        return (start + PAGE - 1) & -PAGE, end

    def _last(self, gap: int, size: int, highest: int) -> Iterator[int]:
        start, end = self._bounds(gap)
        at = min(end - size, highest) & -PAGE
        if start <= at:
            yield at

    def _first(self, gap: int, size: int, lowest: int) -> Iterator[int]:
        start, end = self._bounds(gap)
        at = max(start, (lowest + PAGE - 1) & -PAGE)
        if at + size <= end:
            yield at

    def take(self, start: int, size: int = PAGE) -> None:
        """These whole pages are not free any more."""
        index = bisect_right(self._starts, start)
        if index and self._ends[index - 1] == start:
            self._ends[index - 1] = start + size
            return
        self._starts.insert(index, start)
        self._ends.insert(index, start + size)


def _with_growth(start: int, end: int, path: str) -> tuple[int, int]:
    """The span of a mapping, with the space into which it may grow."""
    if path == "[stack]":
        return start - _STACK_GROWTH, end
    if path == "[heap]":
        return start, end + _HEAP_GROWTH
    return start, end


class _Batch:
    """`pid`: of the process in which it is in progress; a fork may have left another thread's in the child."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.known: AddressSpace | None = None


_batches: list[_Batch] = []


@contextlib.contextmanager
def read_once() -> Iterator[None]:
    """Within it the file is read once: that of thousands of mappings takes longer than what is done with them."""
    with text_mutex:
        _batches.append(_batches[-1] if _batches and _batches[-1].pid == os.getpid() else _Batch())
        try:
            yield
        finally:
            _batches.pop()


def address_space() -> AddressSpace:
    """What is taken now; within `read_once`, what was at the first call there. With `text_mutex`."""
    batch = _batches[-1] if _batches and _batches[-1].pid == os.getpid() else _Batch()
    if batch.known is None:
        batch.known = AddressSpace()
    return batch.known
