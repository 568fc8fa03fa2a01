"""Array: a fixed number of values, counted from 0."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ftrace.core.maps.areas import Map, MapState, Total, area_of, at, element_size, spare
from sandbox.native import *
from sandbox.native.containers import Operation, check_value_type
from sandbox.native.types import Int
from sandbox.process.integers import U64_MAX, between


@native
def array_slot(state: ptr[MapState], index: u64) -> u64:
    """Address of the value at `index`, or of the spare element if the index is out of range."""
    area = area_of(state)
    if unlikely(index >= state.count):
        return spare(state, area)
    return at(area, state.first + index * state.element)


class Array(Map):
    """`size` values of a type; native functions write `hits[i] += 1`. The values are zero at first.

    Each thread has its own values, and Python reads their sums. With `shared`, all threads use the same values, and `+=` is
    atomic. An index out of range is counted in `dropped` and changes nothing.
    Raises TypeError for a type other than an integer, pointer or struct, ValueError for a size that is not positive or too large.
    """

    def __init__(self, value: Any, size: int, *, shared: bool = False) -> None:
        self.value = check_value_type(value, "an array's value")
        size = between("the size of the Array", size, 1, U64_MAX)
        subscript = Operation(array_slot, (Int(64, signed=False),), place=self.value)
        super().__init__({"[]": subscript}, size, element_size(self.value), is_shared=shared)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        """The value at `index`: an int, or a ctypes structure. Raises IndexError for an index out of range."""
        index = between("the index", index, 0, self.size - 1, IndexError)
        total = Total(self.value)
        for area in self._areas():
            total.add(area + self._state.first + index * self._state.element)
        return total.plain

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(self.size))

    def items(self) -> Iterator[tuple[int, Any]]:
        """Pairs of index and value."""
        return enumerate(self)
