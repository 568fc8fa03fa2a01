"""PerThreadHistogram: create and read histograms that each thread counts in a table of its own (see table_records)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

from ftrace.core.maps.areas import memory
from ftrace.core.runtime import runtime
from ftrace.hit.events.table_records import COMPUTED, HEADER, KEY_AT, SHORT_KEY, NativeField, NativeTable, TableHeader
from ftrace.tracing.events.filters.predicates import COMM_SIZE
from ftrace.tracing.events.hist.definition import Definition
from ftrace.tracing.events.hist.native_image import hist_image
from ftrace.tracing.events.hist.programs import NUMBERS, made_program, made_source
from ftrace.tracing.events.hist.text import Contents, Entry, decoded_key
from ftrace.tracing.events.hist.values import MASK, FieldValue, HistField
from ftrace.tracing.events.triggers.interfaces import NativeCall, TraceInstance
from sandbox.memory import mappings
from sandbox.threads import tasks


class PerThreadHistogram:
    """A histogram with a table for each thread. Pages are charged when they are touched."""

    @staticmethod
    def supports(definition: Definition) -> bool:
        """Whether the threads can count apart: no hit needs what another one left in an entry."""
        return not definition.variables and not definition.actions and not definition.refers

    def __init__(self, definition: Definition, instance: TraceInstance) -> None:
        self._definition = definition
        self._fields = (*definition.keys, *definition.values)
        self._has_comm = any(key.modifier == "execname" for key in definition.keys)
        self._keep: list[object] = []
        """What the native half points to."""
        self.native: Any = NativeTable.ctypes()
        """The native half, which hits use."""
        self._lay_out()
        self.native.source = source = made_source(instance)
        self._keep.append(source)
        self._length = -(-(HEADER + self._places * self.native.entry) // mappings.PAGE) * mappings.PAGE
        self.native.stride = self._length
        self.native.base = memory.take(self, self._length * tasks.CAPACITY)
        self.call = NativeCall(hist_image().address(self._function()), ctypes.addressof(self.native), self)

    @property
    def _places(self) -> int:
        return 2 * self._definition.size

    def _lay_out(self) -> None:
        table, definition = self.native, self._definition
        table.mask = self._places - 1
        table.shift = 64 - (self._places - 1).bit_length()
        table.limit = definition.size
        table.key_words = sum(self.key_words)
        table.sums = 8 * (KEY_AT + table.key_words)
        end = table.sums + 8 * (1 + len(definition.values))
        table.comm = end if self._has_comm else 0
        table.entry = end + (COMM_SIZE if self._has_comm else 0)
        table.keys, table.values = len(definition.keys), len(definition.values)
        for index, field in enumerate(self._fields):
            table.fields[index] = self._native_field(field, is_value=index >= table.keys)

    def _native_field(self, field: HistField, is_value: bool) -> Any:
        made = NativeField.ctypes(source=COMPUTED, words=field.key_size // 8)
        if isinstance(field.value, FieldValue):
            where = field.value.where
            made.source, made.start = NUMBERS[where.size, where.signed], where.offset
        made.program = program = made_program(field.value, as_number=is_value)
        self._keep.append(program)
        return made

    @property
    def key_words(self) -> list[int]:
        """The words of each key: more than one of a text."""
        return [key.key_size // 8 for key in self._definition.keys]

    @property
    def signed(self) -> list[bool]:
        """Whether each key and each value is a signed number."""
        return [isinstance(field.value, FieldValue) and field.value.where.signed for field in self._fields]

    @property
    def is_plain(self) -> bool:
        """Whether all keys and values are plain numbers of the record."""
        return all(field.source != COMPUTED for field in self.native.fields[: len(self._fields)])

    def _function(self) -> str:
        if not self.is_plain:
            return "count_short" if self.native.key_words <= SHORT_KEY else "count_long"
        return "count_number" if len(self._definition.keys) == 1 else "count_numbers"

    def contents(self) -> Contents:
        """The sums over all threads. If there are too many entries, those with the fewest hits are dropped."""
        found: dict[bytes, tuple[list[int], str]] = {}
        hits = dropped = 0
        for area in self._areas():
            header = TableHeader.ctypes.from_address(area)
            dropped += header.dropped
            for key, sums, comm in self._entries(area) if header.used else ():
                hits += sums[0]
                totals = found.setdefault(key, ([0] * len(sums), comm))[0]
                totals[:] = [(one + other) & MASK for one, other in zip(totals, sums, strict=True)]
        entries = [Entry(decoded_key(self._definition, key), tuple(sums), comm) for key, (sums, comm) in found.items()]
        entries.sort(key=lambda entry: -entry.sums[0])
        lost = sum(entry.sums[0] for entry in entries[self._definition.size :])
        return Contents(entries[: self._definition.size], hits - lost, dropped + lost)

    def clear(self) -> None:
        """Remove all entries. Hits that are counted at the same time may be lost."""
        for area in self._areas():
            ctypes.memset(area, 0, self._length)

    def _areas(self) -> Iterator[int]:
        used = len(runtime().tasks())
        return iter(range(self.native.base, self.native.base + used * self._length, self._length))

    def _entries(self, area: int) -> Iterator[tuple[bytes, list[int], str]]:
        """The key, sums and task name of each entry of one thread."""
        table, step = self.native, self.native.entry // 8
        words = (ctypes.c_uint64 * (self._places * step)).from_address(area + HEADER)
        for place, is_complete in enumerate(words[1::step]):
            if is_complete:
                address = area + HEADER + place * table.entry
                first = place * step
                sums = words[first + table.sums // 8 : first + table.sums // 8 + 1 + table.values]
                comm = ctypes.string_at(address + table.comm, COMM_SIZE).partition(b"\0")[0] if table.comm else b""
                key = ctypes.string_at(address + 8 * KEY_AT, 8 * table.key_words)
                yield key, sums, comm.decode("utf-8", "surrogateescape")
