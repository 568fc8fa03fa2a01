"""The memory of maps: an area for each task, written only by its thread; or one area that all threads share.

An area is a header of 64 bytes, a spare element for dropped values, and the elements.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ftrace.core.runtime import runtime
from sandbox.memory import mappings
from sandbox.native import *
from sandbox.native.containers import PREFIX, Container, Operation
from sandbox.native.front.structs import Struct, ctypes_type
from sandbox.native.types import Int, Type
from sandbox.threads import tasks
from sandbox.threads.tasks import current

HEADER = 64
MAX_AREA = 1 << 30
"""The maximum size of one thread's area, in bytes."""


@struct
class MapState(Structure):
    """Address and layout of a map. `base` and all following fields are constant while it exists."""

    base: u64
    stride: u64  # from one task's area to the next; 0: all share the first
    count: u64  # elements
    element: u64  # bytes from one element to the next
    spare: u64  # offset of the spare element
    first: u64  # offset of the first element
    shift: u64  # hash: 64 less the number of bits of an index
    width: u64  # histogram: buckets in a row
    low: u64  # histogram: where its first bucket begins
    step: u64  # histogram: width of a bucket; 0: powers of two


@struct
class AreaHeader(Structure):
    dropped: u64  # values that found no free element
    used: u64  # elements in use
    reserved: array[u64, 6]


@native(inline=True)
def area_of(state: ptr[MapState]) -> ptr[u8]:
    """The running thread's area."""
    return cast(ptr[u8], state.base + cast(u64, current().index) * state.stride)


@native(inline=True)
def at(area: ptr[u8], offset: u64) -> u64:
    return cast(u64, addressof(area[offset]))


@native(noinline=True)
def spare(state: ptr[MapState], area: ptr[u8]) -> u64:
    """The address of the spare element, which takes dropped values; counts one."""
    header = cast(ptr[AreaHeader], area)
    atomic_add(addressof(header.dropped), 1, "relaxed")
    return at(area, state.spare)


class Memory:
    """The allocator of new maps: private memory, unless `lender` is set."""

    def __init__(self) -> None:
        self.lender: Callable[[int], int] | None = None
        """From a size in bytes to the address of zeroed memory of that size, which its lender frees."""

    def take(self, owner: object, size: int) -> int:
        """The address of zeroed memory of that size for `owner`. It is freed with the owner, unless it was lent."""
        if self.lender is not None:
            return self.lender(size)
        address = mappings.reserve(size)
        weakref.finalize(owner, mappings.release, address, size).atexit = False
        return address


memory = Memory()
"""The process's allocator of maps."""


class Map(Container):
    """A container in areas: what its Python side shares.

    Its memory is reserved when it is made and charged as it is touched (see `Memory.take`).
    """

    def __init__(
        self, operations: Mapping[str, Operation], size: int, element: int, *, is_shared: bool, **layout: int
    ) -> None:
        super().__init__(MapState, operations, is_shared)
        self.size = size
        first = HEADER + element
        length = -(-(first + size * element) // mappings.PAGE) * mappings.PAGE
        if length > MAX_AREA:
            raise ValueError(f"a map of {size} elements of {element} bytes takes {length} bytes, more than {MAX_AREA}")
        areas = 1 if is_shared else tasks.CAPACITY
        base = memory.take(self, length * areas)
        self._length = length
        self._loaded: int | None = None
        where = {"base": base, "stride": 0 if is_shared else length, "spare": HEADER, "first": first}
        self._state = MapState.ctypes(**where, count=size, element=element, **layout)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.label}: {self.size} places>"

    @property
    def label(self) -> str:
        """Its name in reports."""
        return self.name.removeprefix(PREFIX)

    @property
    def state(self) -> bytes:
        """The map's state, as native functions have it."""
        return bytes(self._state)

    @property
    def dropped(self) -> int:
        """Uses that did not fit into the map, over all threads."""
        return sum(AreaHeader.ctypes.from_address(area).dropped for area in self._areas())

    def dropped_line(self) -> str:
        """The listing's line about them; empty if there are none."""
        return f"  {self.dropped} dropped: the map has no element for them" if self.dropped else ""

    def items(self) -> Iterable[tuple[int, Any]]:
        """Pairs of index, key or row, and value."""
        raise NotImplementedError

    def clear(self) -> None:
        """Forget everything. What threads write at the same time may be lost."""
        for area in self._areas():
            ctypes.memset(area, 0, self._length)

    @property
    def address(self) -> int:
        """The addresses of its memory."""
        return int(self._state.base)

    def load(self, parts: Iterable[tuple[int, bytes]]) -> None:
        """Take the contents of the same map in another process: offsets in its memory, and bytes."""
        last = 0
        for offset, data in parts:
            ctypes.memmove(self._state.base + offset, data, len(data))
            last = offset + len(data)
        self._loaded = -(-last // self._length)

    def _areas(self) -> Iterator[int]:
        """The addresses of the areas that may have been written to."""
        used = 1 if self.is_shared else len(runtime().tasks()) if self._loaded is None else self._loaded
        return iter(range(self._state.base, self._state.base + used * self._length, self._length))


def element_size(value: Type) -> int:
    """Bytes from one value to the next, so that every word of it is aligned."""
    return -(-value.size // 8) * 8


class Total:
    """Sums values of one type, as they lie in memory, over threads: integers add up and wrap, structs do by field."""

    def __init__(self, type_: Type) -> None:
        self._type = type_
        self._ctype = ctypes_type(type_)
        self._is_record = isinstance(type_, Struct)
        self.value: Any = self._ctype()
        """The sum as a ctypes object."""

    def add(self, address: int) -> None:
        """Add the value at `address`."""
        self.value = _sum(self.value, self._ctype.from_address(address))

    @property
    def plain(self) -> Any:
        """The sum as an int, or as a ctypes structure if it is a struct."""
        if self._is_record:
            return self.value
        number = self.value.value or 0
        return self._type.wrap(number) if isinstance(self._type, Int) else number


def _sum(left: Any, right: Any) -> Any:
    if isinstance(left, ctypes.Structure):
        for name, *_ in type(left)._fields_:
            setattr(left, name, _sum_of_fields(getattr(left, name), getattr(right, name)))
        return left
    if isinstance(left, ctypes.Array):
        for index in range(len(left)):
            left[index] = _sum_of_fields(left[index], right[index])
        return left
    return type(left)(_sum_of_fields(left.value, right.value))


def _sum_of_fields(left: Any, right: Any) -> Any:
    """The sum of plain numbers (pointers are None or a number), or of nested structures and arrays."""
    if isinstance(left, (int, type(None))):
        return (left or 0) + (right or 0)
    return _sum(left, right)
