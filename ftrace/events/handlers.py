"""Compile an event's generated source: its handlers, and the shortcuts that its filter and triggers allow.

Probes with the same source share one function. The compiled code is cached on disk by its source.
"""

from __future__ import annotations

import ctypes
import hashlib
import linecache
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from ftrace.events import event_state
from ftrace.events.event_state import EventState
from ftrace.events.handler_source import InexpressibleError, Shape
from ftrace.events.shortcut_source import EARLY, NAME, filter_source, hist_source
from ftrace.handlers import native_link
from ftrace.probe_args.layout import RecordLayout
from ftrace.ring_buffer.records import Mark, Reservation
from sandbox import native
from sandbox.loading.native_image import NativeImage
from sandbox.native import i32, ptr, u64
from sandbox.native.function import Options
from sandbox.native.handler import HandlerFunction
from sandbox.threads.tasks import current

if TYPE_CHECKING:
    from ftrace.events.event_file import EventFile
    from ftrace.events.filters.parser import Filter
    from ftrace.events.triggers.trigger import Trigger

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
        "EventState", "begin_record", "claim", "copy_words", "count_hit", "count_hit_of", "end_record", "fetch_comm",
        "fetch_symbol", "fetch_text", "release", "is_judged", "needs_record", "put_text", "scratch_of", "FunctionShortcut",
        "Shortcut", "Target",
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
    filename = f"<event {hashlib.sha256(source.encode()).hexdigest()[:16]}>"
    lines = source.splitlines(keepends=True)
    linecache.cache[filename] = (len(source), None, lines, filename)
    names = {**_NAMES, **more}
    known = set(names)
    exec(compile(source, filename, "exec"), names)
    return next(value for name, value in names.items() if name not in known and isinstance(value, FunctionType))


_linked: native_link.Once[Shortcut] = native_link.Once()


class Shortcut:
    """A shortcut's code, which exists as long as this object. Release it when no hit can be executing the code.

    `early`: the same for hits before a trampoline has saved anything; None if that cannot be.
    """

    def __init__(
        self, handler: HandlerFunction, image: NativeImage, early: Shortcut | None, keep: object = None
    ) -> None:
        self._handler, self._image, self._keep = handler, image, keep
        self.address = image.address(NAME)
        self.early = early


def shortcut_of(file: EventFile, layout: RecordLayout, shape: Shape, make: Make) -> Shortcut | None:
    """The shortcut for hits of an event whose only file is `file`; None if hits need a record.

    `make`: makes a native function a handler of this kind of probe.
    """
    try:
        if file.triggers.only_hist is not None:
            return _counting(file, file.triggers.only_hist, layout, shape, make)
        if not file.triggers and file.used_filter is not None:
            return _dropping(file.used_filter, layout, shape, make)
    except InexpressibleError:
        pass
    return None


def early_function(function: FunctionType) -> HandlerFunction:
    """A function that handles hits early, from generated source."""
    options = Options(bounded=False, cc="preserve_most")
    return HandlerFunction(function, options, {}, (*(u64,) * len(EARLY.registers), ptr[EventState]), i32)


def _early(make: Callable[[], Shortcut]) -> Shortcut | None:
    with suppress(InexpressibleError):
        return make()
    return None


def _dropping(filter_: Filter, layout: RecordLayout, shape: Shape, make: Make) -> Shortcut:
    handler = native_handler(filter_source(layout, shape, filter_), make).returning(i32)

    def linked() -> Shortcut:
        early = None
        if shape is not EARLY:
            early = _early(lambda: _dropping(filter_, layout, EARLY, early_function))
        return Shortcut(handler, _link(handler), early)

    return _linked.get(handler, NAME, linked)


def _counting(file: EventFile, trigger: Trigger, layout: RecordLayout, shape: Shape, make: Make) -> Shortcut:
    from ftrace.events.hist.hist_trigger import SHORTCUT_NAMES, number_table

    base, table = number_table(trigger)
    condition = trigger.condition.filter if trigger.condition is not None else None
    handler = native_handler(hist_source(layout, shape, table, condition), make, SHORTCUT_NAMES).returning(i32)
    image = _link(handler)
    image.variable("hist_base").value = base
    image.variable("hist_target").value = file.target
    image.variable("hist_trigger").value = ctypes.addressof(trigger.native)
    early = None
    if shape is not EARLY:
        early = _early(lambda: _counting(file, trigger, layout, EARLY, early_function))
    return Shortcut(handler, image, early, (file, trigger))


def _link(handler: HandlerFunction) -> NativeImage:
    return native_link.link(f"event:{NAME}", native_link.HandlerCode(handler, NAME).verified_object())
