"""NativeHistogram: create and read histograms that hits update in native code (see table_records)."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterator
from functools import cache
from typing import Any

from ftrace.events.filters.compiled import rseq_offset
from ftrace.events.filters.predicates import COMM_SIZE, DynamicText, StaticText
from ftrace.events.hist import queue_records, table_records
from ftrace.events.hist.definition import Definition
from ftrace.events.hist.table_records import HEADER, KEY_AT, NativeField, NativeTable, TableHeader
from ftrace.events.hist.text import Contents, Entry
from ftrace.events.hist.values import MASK, HistField, Sort, StackValue, TextValue
from ftrace.events.triggers.interfaces import NativeCall, TraceInstance
from ftrace.runtime import runtime
from sandbox.loading.native_image import NativeImage
from sandbox.memory import mappings
from sandbox.native import Unit
from sandbox.threads import tasks

_NUMBERS = {
    (1, False): table_records.U8,
    (1, True): table_records.I8,
    (2, False): table_records.U16,
    (2, True): table_records.I16,
    (4, False): table_records.U32,
    (4, True): table_records.I32,
}
_SHAPES = {"log2": table_records.LOG2, "buckets": table_records.BUCKETS}
_KEYS = (Sort.NUMBER, Sort.TEXT, Sort.CPU, Sort.HITCOUNT, Sort.STACKTRACE)
_VALUES = (Sort.NUMBER, Sort.CPU, Sort.HITCOUNT)


@cache
def hist_image() -> NativeImage:
    """The native functions of histograms, linked when the first histogram is made."""
    functions = (*table_records.FUNCTIONS, queue_records.queue_hit)
    image = NativeImage.of(Unit("event-hists", functions, bounded=False), uses=runtime().image)
    image.variable("task_offset").value = runtime().key.offset
    image.publish()
    return image


class NativeHistogram:
    """A histogram with a table for each thread. Pages are charged when they are touched."""

    @staticmethod
    def supports(definition: Definition) -> bool:
        """Whether hits can update the table: there are no variables and no actions, and nothing is computed."""
        return (
            not definition.variables
            and not definition.actions
            and all(key.sort in _KEYS and not isinstance(key.value, StackValue) for key in definition.keys)
            and all(value.sort in _VALUES for value in definition.values)
        )

    def __init__(self, definition: Definition, instance: TraceInstance) -> None:
        self._definition = definition
        self._has_stack = any(key.sort is Sort.STACKTRACE for key in definition.keys)
        self._capture = instance.capture_stack if self._has_stack else None
        self._has_comm = any(key.modifier == "execname" for key in definition.keys)
        self.native: Any = NativeTable.ctypes()
        """The native half, which hits use."""
        self._lay_out()
        self._length = -(-(HEADER + self._places * self.native.entry) // mappings.PAGE) * mappings.PAGE
        self.native.stride = self._length
        self.native.base = mappings.reserve(self._length * tasks.CAPACITY)
        release = weakref.finalize(self, mappings.release, self.native.base, self._length * tasks.CAPACITY)
        release.atexit = False
        self.call = NativeCall(hist_image().address(self._function()), ctypes.addressof(self.native), self)

    @property
    def _places(self) -> int:
        return 2 * self._definition.size

    def _lay_out(self) -> None:
        table, definition = self.native, self._definition
        table.mask = self._places - 1
        table.shift = 64 - (self._places - 1).bit_length()
        table.limit = definition.size
        table.key_words = sum(key.key_size // 8 for key in definition.keys)
        table.sums = 8 * (KEY_AT + table.key_words)
        end = table.sums + 8 * (1 + len(definition.values))
        table.comm = end if self._has_comm else 0
        table.entry = end + (COMM_SIZE if self._has_comm else 0)
        table.rseq = rseq_offset()
        if self._capture is not None:
            table.capture, table.capture_argument = self._capture.address, self._capture.argument
        table.keys, table.values = len(definition.keys), len(definition.values)
        for index, field in enumerate((*definition.keys, *definition.values)):
            table.fields[index] = _native_field(field)

    def _function(self) -> str:
        if self._has_stack:
            return "count_stacks"
        if any(key.is_text for key in self._definition.keys):
            return "count_texts"
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
        entries = [Entry(self._decoded(key), tuple(sums), comm) for key, (sums, comm) in found.items()]
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

    def _decoded(self, key: bytes) -> tuple[int | bytes, ...]:
        parts: list[int | bytes] = []
        for field in self._definition.keys:
            part, key = key[: field.key_size], key[field.key_size :]
            if field.sort is Sort.STACKTRACE:
                parts.append(part)
            else:
                parts.append(part.partition(b"\0")[0] if field.is_text else int.from_bytes(part, "little"))
        return tuple(parts)


def _native_field(field: HistField) -> Any:
    shape = _SHAPES.get(field.modifier, table_records.PLAIN)
    made = NativeField.ctypes(shape=shape, width=field.buckets, words=field.key_size // 8)
    if field.sort is Sort.CPU:
        made.source = table_records.CPU
    elif field.sort is Sort.HITCOUNT:
        made.source, made.shape = table_records.ONE, table_records.PLAIN
    elif field.sort is Sort.STACKTRACE:
        made.source = table_records.STACK
    elif isinstance(field.value, TextValue):
        _set_text(made, field.value.where)
    else:
        assert field.field is not None
        made.source = _NUMBERS.get((field.size, field.signed), table_records.WORD)
        made.start = field.field.offset
    return made


def _set_text(made: Any, text: StaticText | DynamicText) -> None:
    made.start = text.offset
    if isinstance(text, StaticText):
        made.source, made.extent = table_records.TEXT, text.size
    else:
        made.source = table_records.DYNAMIC_TEXT
