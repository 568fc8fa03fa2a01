"""Events that every kernel has, which the machine fires: those of include/trace/events, with the fields that tests use."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

from ftrace.core.runtime import runtime
from ftrace.tracing import symbols
from ftrace.tracing.events.registry import TraceEvent, event_registry
from ftrace.tracing.output.events import STATIC_PRINTERS, Printers
from ftrace.tracing.probe_args.layout import COMMON_SIZE, Field
from sandbox.symbols.table import symbol_table

_TASK = ("comm:16", "pid:i", "prio:i")
_DECLARED = {
    "sched/sched_switch": (*(f"prev_{each}" for each in _TASK), "prev_state:q", *(f"next_{each}" for each in _TASK)),
    "sched/sched_wakeup": (*_TASK, "target_cpu:i"),
    "sched/sched_waking": (*_TASK, "target_cpu:i"),
    "sched/sched_process_fork": ("parent_comm:16", "parent_pid:i", "child_comm:16", "child_pid:i"),
    "sched/sched_process_exec": ("filename:dynamic", "pid:i", "old_pid:i"),
    "sched/sched_process_exit": _TASK,
    "signal/signal_generate": ("sig:i", "errno:i", "code:i", "comm:16", "pid:i"),
    "kmem/kmalloc": ("call_site:Q", "bytes_req:Q", "bytes_alloc:Q"),
    "kmem/kmem_cache_free": ("call_site:Q",),
    "timer/timer_start": ("timer:Q", "function:Q", "expires:Q"),
    "raw_syscalls/sys_exit": ("id:q", "ret:q"),
}
"""NAME:KIND of each field. Kinds: the number of letters of a text, a text of any length, or a format of struct."""
_TYPES = {"i": ("pid_t", True), "q": ("long", True), "Q": ("unsigned long", False)}
_SITES = {"vfs_open", "putname", "dput", "kernel_clone"}


class StaticEvent(TraceEvent):
    """An event that is recorded by the kernel's own code."""

    def __init__(self, group: str, name: str, declared: tuple[str, ...]) -> None:
        self.kinds = [each.partition(":")[2] for each in declared]
        offset, fields = COMMON_SIZE, []
        for each in declared:
            field, _, kind = each.partition(":")
            made = _field(field, kind, offset)
            fields.append(made)
            offset = made.offset + made.size
        self.size = offset
        super().__init__(group, name, fields, ", ".join(f"REC->{field.name}" for field in fields))
        STATIC_PRINTERS[group, name] = Printers(lambda _event, _options: self._text)

    def packed(self, values: tuple[Any, ...]) -> bytes:
        """The record with these values."""
        record, tail = bytearray(self.size), b""
        for field, kind, value in zip(self.fields, self.kinds, values, strict=True):
            if kind == "dynamic":
                tail = value.encode() + b"\0"
                struct.pack_into("<I", record, field.offset, len(tail) << 16 | self.size)
            elif isinstance(value, str):
                struct.pack_into("16s", record, field.offset, value.encode()[:15])
            else:
                struct.pack_into(f"<{kind}", record, field.offset, value)
        return bytes(record) + tail + bytes(-(len(record) + len(tail)) % 4)

    def _text(self, data: bytes) -> str:
        return (
            f"{self.name}: "
            + " ".join(
                f"{field.name}={_shown(field, kind, data)}" for field, kind in zip(self.fields, self.kinds, strict=True)
            )
            + "\n"
        )


def _field(name: str, kind: str, offset: int) -> Field:
    if kind == "dynamic":
        return Field("__data_loc char[]", name, offset, 4, True)
    if kind.isdigit():
        return Field(f"char[{kind}]", name, offset, int(kind), False)
    size = struct.calcsize(kind)
    return Field(_TYPES[kind][0], name, -(-offset // size) * size, size, _TYPES[kind][1])


def _shown(field: Field, kind: str, data: bytes) -> str:
    if kind == "dynamic":
        word = struct.unpack_from("<I", data, field.offset)[0]
        return data[word & 0xFFFF :].partition(b"\0")[0].decode()
    if kind.isdigit():
        return data[field.offset : field.offset + field.size].partition(b"\0")[0].decode("utf-8", "surrogateescape")
    value = struct.unpack_from(f"<{kind}", data, field.offset)[0]
    return symbols.with_offset(value) if field.name == "call_site" else str(value)


class Events:
    """The events. `call(function, *arguments)` calls a function of the stand-in kernel."""

    def __init__(self, call: Callable[..., None]) -> None:
        self._call = call
        self._record = runtime().image.address("event_record_made")
        self._sites = {name: symbol_table.lookup(name) + 5 for name in _SITES}
        self._events: dict[str, StaticEvent] = {}
        for path, declared in _DECLARED.items():
            group, _, name = path.partition("/")
            self._events[name] = event = StaticEvent(group, name, declared)
            event_registry.add(event)

    def fire(self, name: str, *values: Any) -> None:
        """Record an event, as the kernel's code does, for each trace array that wants it."""
        event = self._events[name]
        files = event.used_files
        if not files:
            return
        if name.startswith("km"):
            values = (self._sites[values[0]], *values[1:])
        data = event.packed(values)
        record = ctypes.create_string_buffer(data, len(data))
        for file in files:
            self._call(
                "schedule_event",
                ctypes.c_void_p(self._record),
                ctypes.c_void_p(file.target),
                event.id,
                record,
                len(data),
            )
