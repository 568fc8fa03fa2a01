"""The records of sub-buffers as arrays: where they are, their fields, and the calls that they are the entries and returns of."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fprobe.export.columns import transposing as native
from fprobe.export.columns.numbers import Table
from fprobe.export.formats import EventFormat

ROWS = 1 << 16
"""Calls that wait to be written."""
_FIRST_ROWS = 1 << 10
_SMALLEST = 8
"""Bytes of the smallest record in a sub-buffer."""
_FRAMES = 1 << 8
MOST_FRAMES = 1 << 16
"""Calls in progress of a thread; deeper ones are given up, with all that they are in."""
_TYPES = 1 << 16
_COMMON = 8
"""Bytes of the fields that all records begin with."""
_COLUMNS = {
    "entered": ctypes.c_int64, "duration": ctypes.c_int64, "own": ctypes.c_int64, "ax": ctypes.c_uint64,
    "tid": ctypes.c_int32, "function": ctypes.c_int32, "stack": ctypes.c_int32, "depth": ctypes.c_int32,
    "origin": ctypes.c_int32, "leave": ctypes.c_uint32,
}  # fmt: skip
RecordPlace: Any = native.RecordPlace
NULL = 0
"""The number of no function and of no stack."""


class Numbers:
    """Numbers for keys, which native code looks up: see `numbers.Table`."""

    def __init__(self) -> None:
        self.record: Any = Table.ctypes()
        self._make(1 << 10)

    def _make(self, size: int) -> None:
        self._arrays = (ctypes.c_uint64 * size)(), (ctypes.c_uint32 * size)(), (ctypes.c_uint64 * (size // 2 + 1))()
        keys, numbers, listed = self._arrays
        self.record.keys, self.record.numbers = ctypes.addressof(keys), ctypes.addressof(numbers)
        self.record.listed = ctypes.addressof(listed)
        self.record.mask, self.record.count = size - 1, 0

    @property
    def address(self) -> int:
        return ctypes.addressof(self.record)

    @property
    def is_full(self) -> bool:
        """Whether nothing can be added to it."""
        return bool((self.record.count + 1) * 2 > self.record.mask)

    def grow(self) -> None:
        """Have twice the space."""
        listed, count = self._arrays[2], self.record.count
        self._make((self.record.mask + 1) * 2)
        native.image().call("refill", self.address, ctypes.addressof(listed), count)

    def keys(self, first: int) -> list[int]:
        """The keys with the numbers from `first` on."""
        return self._arrays[2][first : self.record.count + 1]

    def key(self, number: int) -> int:
        """The key with this number."""
        return int(self._arrays[2][number])

    def __len__(self) -> int:
        return int(self.record.count)


@dataclass
class Batch:
    """The records of sub-buffers. `found`: an array of RecordPlace, of which `count` are used.

    `types`: those of records that are more than an entry or a return.
    """

    found: Any
    count: int
    types: tuple[int, ...]

    @property
    def address(self) -> int:
        return ctypes.addressof(self.found)

    def of_type(self, number: int, offset: int) -> Chosen:
        """The records of a type."""
        times, chosen = (ctypes.c_int64 * self.count)(), (ctypes.c_uint32 * self.count)()
        where = ctypes.addressof(times), offset & (1 << 64) - 1, ctypes.addressof(chosen)
        count = native.image().call("records_of_type", self.address, self.count, number, *where)
        return Chosen(self, count, times, chosen)

    def after_losses(self) -> Iterator[Any]:
        """The records before which others are missing."""
        chosen = (ctypes.c_uint32 * self.count)()
        count = native.image().call("after_losses", self.address, self.count, ctypes.addressof(chosen))
        for index in chosen[:count]:
            yield self.found[index]


@dataclass
class Chosen:
    """Records of one type, and their times."""

    batch: Batch
    count: int
    times: Any
    indices: Any

    def column(self, offset: int, size: int) -> bytearray:
        """A field of `size` bytes of each record, one after the other."""
        found = bytearray(max(self.count * size, 1))
        out = (ctypes.c_uint8 * len(found)).from_buffer(found)
        where = ctypes.addressof(self.indices), self.count, offset, size, ctypes.addressof(out)
        native.image().call("gather", self.batch.address, *where)
        return found

    def records(self) -> Iterator[bytes]:
        """Each record as bytes."""
        for index in self.indices[: self.count]:
            each = self.batch.found[index]
            yield ctypes.string_at(each.data, each.length)


class Kinds:
    """What records of each type are to calls, and where they have the function's address."""

    def __init__(self) -> None:
        self.kinds, self.address_at = (ctypes.c_uint8 * _TYPES)(), (ctypes.c_uint16 * _TYPES)()

    def know(self, formats: Mapping[int, EventFormat]) -> None:
        """Take the entries and returns of calls from the formats of events."""
        for number, event in formats.items():
            for kind, name in _KINDS.get(event.name, _OF_PROBES) if event.group == "ftrace" else _OF_PROBES:
                place = next((field.offset for field in event.fields if field.name == name), None)
                if place is not None:
                    self.kinds[number], self.address_at[number] = kind, place
                    break

    def know_calls(self) -> None:
        """The records are those of `ftrace.hit.call_records`."""
        from ftrace.hit.call_records import ENTRY, EXIT

        for number, kind in (ENTRY, native.CALL_ENTRY), (EXIT, native.CALL_RETURN):
            self.kinds[number], self.address_at[number] = kind, _COMMON


class Located:
    """Space for the records that are being taken, and for their types: one for all `Pages` of a thread."""

    def __init__(self) -> None:
        self.seen, self.types = (ctypes.c_uint8 * _TYPES)(), (ctypes.c_uint16 * _TYPES)()
        self.records: Any = (RecordPlace.ctypes * 0)()


class Pages:
    """Finds the records of sub-buffers, and makes calls of them. `is_full`: called when `most` calls wait; it takes them.

    `offset` is added to all times. Raises ValueError for a damaged sub-buffer.
    """

    def __init__(
        self, offset: int, is_full: Callable[[], None], kinds: Kinds, most: int = ROWS, located: Located | None = None
    ) -> None:
        self.functions, self.stacks, self._returning = Numbers(), Numbers(), Numbers()
        self._is_full, self._most, self._kinds, self._located = is_full, most, kinds, located or Located()
        self.rows: Any = native.Rows.ctypes()
        self.arrays: dict[str, Any] = {}
        self._have_rows(min(most, _FIRST_ROWS))
        self._pairing: Any = native.Pairing.ctypes()
        record = self._pairing
        record.kinds, record.address_at = ctypes.addressof(kinds.kinds), ctypes.addressof(kinds.address_at)
        record.functions, record.stacks = self.functions.address, self.stacks.address
        record.returning, record.rows = self._returning.address, ctypes.addressof(self.rows)
        record.offset = offset
        self._threads: dict[tuple[int, int], tuple[Any, Any]] = {}

    def _have_rows(self, capacity: int) -> None:
        """Have space for so many calls that wait."""
        before, self.arrays = self.arrays, {name: (kind * capacity)() for name, kind in _COLUMNS.items()}
        for name, array in self.arrays.items():
            if before:
                ctypes.memmove(array, before[name], ctypes.sizeof(before[name]))
            setattr(self.rows, name, ctypes.addressof(array))
        self.rows.capacity = capacity

    def _more_rows(self) -> None:
        if self.rows.capacity == self._most:
            self._is_full()
        else:
            self._have_rows(min(self._most, 4 * self.rows.capacity))

    def record(self, index: int) -> bytes:
        """A record of the sub-buffers that are being taken."""
        each = self._located.records[index]
        return ctypes.string_at(each.data, each.length)

    def take(self, origin: int, slot: int, data: bytearray, page_size: int) -> Batch:
        """The records of consecutive sub-buffers of a slot, of which calls are made. They are valid while `data` is."""
        if len(data) % page_size:
            raise ValueError("damaged sub-buffer: it is cut off")
        located = self._located
        if len(located.records) * _SMALLEST < len(data):
            located.records = (RecordPlace.ctypes * (len(data) // _SMALLEST))()
        image, pairing, records = native.image(), ctypes.addressof(self._pairing), ctypes.addressof(located.records)
        count = image.call(
            "locate_all", ctypes.addressof(ctypes.c_char.from_buffer(data)), len(data), page_size, records
        )
        if count < 0:  # DAMAGED, as results are signed
            raise ValueError("damaged sub-buffer")
        seen, types = ctypes.addressof(located.seen), ctypes.addressof(located.types)
        number = image.call("other_types", pairing, records, count, seen, types)
        batch = Batch(located.records, count, tuple(located.types[:number]))
        while image.call("note_returning", pairing, batch.address, count) < count:
            self._returning.grow()
        self._pair(self._thread(origin, slot), batch)
        return batch

    def _pair(self, thread: tuple[Any, Any], batch: Batch) -> None:
        done, record = 0, thread[0]
        while done < batch.count:
            where = ctypes.addressof(self._pairing), ctypes.addressof(record), batch.address, done, batch.count
            done = native.image().call("pair", *where)
            if done < batch.count:
                self._make_space(record)

    def _make_space(self, thread: Any) -> None:
        if self.rows.count == self.rows.capacity:
            self._more_rows()
        elif thread.depth == MOST_FRAMES:
            self._give_up(thread)
        elif thread.depth == thread.capacity:
            self._more_frames(thread)
        for each in (self.functions, self.stacks):
            if each.is_full and len(each) < native.MOST_STACKS:
                each.grow()

    def _thread(self, origin: int, slot: int) -> tuple[Any, Any]:
        key = origin, slot
        if key not in self._threads:
            thread: Any = native.Thread.ctypes()
            thread.origin = origin
            self._threads[key] = thread, None
            self._more_frames(thread)
        return self._threads[key]

    def _more_frames(self, thread: Any) -> None:
        key = next(key for key, (each, _) in self._threads.items() if each is thread)
        old, size = self._threads[key][1], max(_FRAMES, thread.capacity * 2)
        frames = (native.Frame.ctypes * size)()
        if old is not None:
            ctypes.memmove(frames, old, ctypes.sizeof(old))
        thread.frames, thread.capacity = ctypes.addressof(frames), size
        self._threads[key] = thread, frames

    def _give_up(self, thread: Any) -> None:
        while not native.image().call("give_up", ctypes.addressof(self._pairing), ctypes.addressof(thread), 0):
            self._more_rows()

    def end(self) -> None:
        """Nothing follows: calls in progress become rows without durations."""
        for thread, _ in self._threads.values():
            self._give_up(thread)


_KINDS = {
    "funcgraph_entry": [(native.GRAPH_ENTRY, "func")],
    "funcgraph_exit": [(native.GRAPH_EXIT, "func")],
}
_OF_PROBES = [(native.PROBE_RETURN, "__probe_func"), (native.PROBE_ENTRY, "__probe_ip")]
