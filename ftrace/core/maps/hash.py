"""Hash: a hash table of fixed size, with open addressing."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from typing import Any

from ftrace.core.maps.areas import AreaHeader, Map, MapState, Total, area_of, at, element_size, spare
from ftrace.hit.hashing import first_place
from sandbox.native import *
from sandbox.native.containers import Operation, check_value_type
from sandbox.native.front.structs import Struct
from sandbox.native.types import Int, Type
from sandbox.process.integers import U64_MAX, between

PROBES = 64
"""The maximum number of places that are probed for a key. At most half of all places are used."""
KEY = 8
"""Bytes before each value, which hold its key. Free places have key 0; the key 0 itself has a separate place at the end."""
ZERO_IS_USED = 1


@native(inline=True)
def place(state: ptr[MapState], area: ptr[u8], index: u64) -> u64:
    return at(area, state.first + index * state.element)


@native(inline=True)
def key_at(address: u64) -> u64:
    return load(cast(ptr[u64], address), "relaxed")


@native(noinline=True)
def hash_take(state: ptr[MapState], area: ptr[u8], address: u64, key: u64) -> u64:
    """Take a free place for `key`. Its value's address; 0 if another key has just taken it; the spare element if full.

    Of the place of key 0, `key` is ZERO_IS_USED.
    """
    header = cast(ptr[AreaHeader], area)
    if atomic_add(addressof(header.used), 1, "relaxed") >= state.count:
        atomic_sub(addressof(header.used), 1, "relaxed")
        return spare(state, area)
    if atomic_cas(cast(ptr[u64], address), 0, key, "relaxed"):
        return address + KEY
    atomic_sub(addressof(header.used), 1, "relaxed")
    return address + KEY if key_at(address) == key else 0


@native(noinline=True)
def hash_zero(state: ptr[MapState], area: ptr[u8], mask: u64) -> u64:
    address = place(state, area, mask + 1)
    if key_at(address) == ZERO_IS_USED:
        return address + KEY
    return hash_take(state, area, address, ZERO_IS_USED)


@native
def hash_slot(state: ptr[MapState], key: u64) -> u64:
    """Address of the value of `key`; a new key's value is zero."""
    area = area_of(state)
    mask = (cast(u64, 1) << (64 - state.shift)) - 1
    if key == 0:
        return hash_zero(state, area, mask)
    index = first_place(key, state.shift)
    for _ in range(PROBES):
        address = place(state, area, index)
        found = key_at(address)
        if found == key:
            return address + KEY
        if found == 0:
            taken = hash_take(state, area, address, key)
            if taken != 0:
                return taken
        index = (index + 1) & mask
    return spare(state, area)


@native
def hash_find(state: ptr[MapState], key: u64) -> u64:
    """Address of the value of `key`; 0 if it is not in the table."""
    area = area_of(state)
    mask = (cast(u64, 1) << (64 - state.shift)) - 1
    if key == 0:
        address = place(state, area, mask + 1)
        return address + KEY if key_at(address) == ZERO_IS_USED else 0
    index = first_place(key, state.shift)
    for _ in range(PROBES):
        address = place(state, area, index)
        found = key_at(address)
        if found == key:
            return address + KEY
        if found == 0:
            return 0
        index = (index + 1) & mask
    return 0


@native
def hash_get(state: ptr[MapState], key: u64) -> u64:
    """The first word of the value of `key`; 0 if it is not in the table."""
    address = hash_find(state, key)
    return 0 if address == 0 else cast(ptr[u64], address)[0]


@native
def hash_has(state: ptr[MapState], key: u64) -> u64:
    return 1 if hash_find(state, key) != 0 else 0


class Hash(Map, Mapping[int, Any]):
    """Values by integer key; native functions write `hits[ip] += 1`. A new key's value is zero.

    In native functions, `h.get(key)` reads an integer value without adding the key, and `h.has(key)` checks for a key. `size`
    is the maximum number of keys: of each thread, and Python reads the sums of the values; or, with `shared`, of all threads
    together, and `+=` is atomic. A key that does not fit is counted in `dropped`. Only `clear()` removes keys.
    Raises TypeError for types that do not fit, ValueError for a size that is not positive or too large.
    """

    def __init__(self, key: Any, value: Any, size: int, *, shared: bool = False) -> None:
        if not isinstance(key, Int):
            raise TypeError(f"the key type of the Hash is {key}; it must be an integer type")
        size = between("the size of the Hash", size, 1, U64_MAX)
        self.key = key
        self.value: Type = check_value_type(value, "a hash's value")
        bits = max(4, (2 * size - 1).bit_length())
        self._places = (1 << bits) + 1
        element = KEY + element_size(self.value)
        super().__init__(self._operations(), self._places, element, is_shared=shared, shift=64 - bits)
        self.size = self._state.count = size
        self._state.spare += KEY

    def _operations(self) -> dict[str, Operation]:
        found = {
            "[]": Operation(hash_slot, (self.key,), place=self.value),
            "has": Operation(hash_has, (self.key,), Int(8, signed=False)),
        }
        if not isinstance(self.value, Struct):
            found["get"] = Operation(hash_get, (self.key,), self.value)
        return found

    def __getitem__(self, key: int) -> Any:
        """The value of `key`: an int, or a ctypes structure. Raises KeyError."""
        return self._totals()[key].plain

    def __iter__(self) -> Iterator[int]:
        return iter(self._totals())

    def __len__(self) -> int:
        return len(self._totals())

    def items(self) -> Any:
        """The present pairs of key and value."""
        return {key: total.plain for key, total in self._totals().items()}.items()

    def _totals(self) -> dict[int, Total]:
        found: dict[int, Total] = {}
        for area in self._areas():
            for key, address in self._used(area):
                if key not in found:
                    found[key] = Total(self.value)
                found[key].add(address + KEY)
        return found

    def _used(self, area: int) -> Iterator[tuple[int, int]]:
        """The keys of an area and the addresses of their places."""
        first, element, last = area + self._state.first, self._state.element, self._places - 1
        if AreaHeader.ctypes.from_address(area).used:
            words = (ctypes.c_uint64 * (self._places * element // 8)).from_address(first)[:: element // 8]
            for index, word in enumerate(words):
                if word:
                    yield self.key.wrap(0 if index == last else word), first + index * element
