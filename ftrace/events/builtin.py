"""The built-in records of ring buffers, with the kernel's ids: what events/ftrace/ describes. They cannot be enabled."""

from __future__ import annotations

from ftrace.events.registry import TraceEvent, event_registry
from ftrace.probe_args.layout import Field

GROUP = "ftrace"


def _event(number: int, name: str, fields: tuple[Field, ...], print_fmt: str) -> TraceEvent:
    event = TraceEvent(GROUP, name, fields, print_fmt)
    event.id = number
    event_registry.reserve(event)
    return event


_WORD = "unsigned long"
FUNCTION = _event(
    1,
    "function",
    (Field(_WORD, "ip", 8, 8, False), Field(_WORD, "parent_ip", 16, 8, False)),
    '" %ps <-- %ps", (void *)REC->ip, (void *)REC->parent_ip',
)
"""A function's entry."""
PRINT = _event(
    5,
    "print",
    (Field(_WORD, "ip", 8, 8, False), Field("char[]", "buf", 16, 0, False)),
    '"%ps: %s", (void *)REC->ip, REC->buf',
)
"""Text that was written to trace_marker."""
RAW_DATA = _event(
    18,
    "raw_data",
    (Field("unsigned int", "id", 8, 4, False), Field("char[]", "buf", 12, 0, False)),
    '"id:%04x %08x", REC->id, (int)REC->buf[0]',
)
"""What was written to trace_marker_raw."""

BUILTIN_EVENTS = (FUNCTION, PRINT, RAW_DATA)
