"""Compile an event's generated source.

Probes with the same source share one function. The compiled code is cached on disk by its source.
"""

from __future__ import annotations

import linecache
import weakref
from collections.abc import Callable, Mapping
from types import FunctionType, MappingProxyType
from typing import Any
from weakref import WeakValueDictionary

from ftrace.hit.events import event_state
from ftrace.hit.ring_buffer.records import Mark, Reservation
from sandbox import native
from sandbox.native.handler import HandlerFunction
from sandbox.process.digests import sha256
from sandbox.threads.tasks import current

Make = Callable[[FunctionType], HandlerFunction]
"""make(function): the handler of a kind of probe."""

_NAMES: dict[str, Any] = {
    name: getattr(native, name)
    for name in (
        "addressof", "cast", "i8", "i16", "i32", "i64", "null", "probe_read", "ptr", "u8", "u16", "u32", "u64",
        "unlikely", "volatile_load", "zeroed",
    )
}  # fmt: skip
_NAMES |= {
    name: getattr(event_state, name)
    for name in (
        "EventState", "FunctionShortcut", "Shortcut", "EventTarget", "begin_judged", "begin_plain_record", "begin_record",
        "claim", "commit", "copy_words", "count_hit", "count_hit_of", "end_record", "fetch_comm", "fetch_symbol", "fetch_text",
        "ip_of", "is_judged", "is_judged_by_array", "needs_record", "passes", "put_text", "release", "scratch_of",
    )
}  # fmt: skip
_NAMES |= {"Mark": Mark, "Reservation": Reservation, "current": current}
_made: WeakValueDictionary[tuple[str, Make], HandlerFunction] = WeakValueDictionary()


def native_handler(source: str, make: Make, names: Mapping[str, Any] = MappingProxyType({})) -> HandlerFunction:
    """The function that `source` defines, as a handler. `names`: other names that it uses."""
    found = _made.get((source, make))
    if found is None:
        found = _made[source, make] = make(_function(source, names))
        weakref.finalize(found, linecache.cache.pop, found.__wrapped__.__code__.co_filename, None).atexit = False
    return found


def _function(source: str, more: Mapping[str, Any]) -> FunctionType:
    filename = f"<event {sha256(source.encode()).hexdigest()[:16]}>"
    lines = source.splitlines(keepends=True)
    linecache.cache[filename] = (len(source), None, lines, filename)
    names = {**_NAMES, **more}
    known = set(names)
    exec(compile(source, filename, "exec"), names)
    return next(value for name, value in names.items() if name not in known and isinstance(value, FunctionType))
