"""heap_sort: a sort that orders equal items as the kernel does.

The kernel sorts the entries of a histogram by the bytes of their keys first (kernel/trace/tracing_map.c), and then with
lib/sort.c, a heap sort, which is not stable. With the same order, texts can be compared line by line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Compare = Callable[[Item, Item], int]
"""Returns a number below 0, 0 or above 0 if the first is less than, equal to or greater than the second."""


def heap_sort(items: Sequence[Item], compare: Compare[Item]) -> list[Item]:
    """`items` in ascending order, by the exchanges that lib/sort.c makes."""
    heap = list(items)
    for root in reversed(range(len(heap) // 2)):
        _sift(heap, root, len(heap), compare)
    end = len(heap)
    while end > 3:
        end -= 1
        heap[0], heap[end] = heap[end], heap[0]
        larger = 1 + (compare(heap[1], heap[2]) <= 0)
        end -= 1
        heap[larger], heap[end] = heap[end], heap[larger]
        _sift(heap, larger, end, compare)
        _sift(heap, 0, end, compare)
    _sort_last(heap, end, compare)
    return heap


def _sort_last(heap: list[Item], end: int, compare: Compare[Item]) -> None:
    """Sort the last two or three items."""
    if end < 2:
        return
    end -= 1
    heap[0], heap[end] = heap[end], heap[0]
    if end == 2 and compare(heap[0], heap[1]) > 0:
        heap[0], heap[1] = heap[1], heap[0]


def _sift(heap: list[Item], root: int, end: int, compare: Compare[Item]) -> None:
    """Move the item at `root` to its place: down along the larger children to a leaf, then back up."""
    at = root
    while 2 * at + 2 < end:
        left = 2 * at + 1
        at = left if compare(heap[left], heap[left + 1]) >= 0 else left + 1
    if 2 * at + 2 == end:
        at = 2 * at + 1
    while at != root and compare(heap[root], heap[at]) >= 0:
        at = (at - 1) // 2
    place = at
    while at != root:
        at = (at - 1) // 2
        heap[at], heap[place] = heap[place], heap[at]
