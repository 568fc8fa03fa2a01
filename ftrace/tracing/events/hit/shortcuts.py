"""Compile and link the shortcuts that an event's filter and triggers allow: see ftrace.tracing.events.hit.shortcut_source."""

from __future__ import annotations

import ctypes
from types import FunctionType
from typing import TYPE_CHECKING, NamedTuple

from ftrace.core.handlers import native_link
from ftrace.hit.events.event_state import EventState
from ftrace.tracing.events.hit.handler_source import EARLY_ENTRY, EARLY_RETURN, EarlyShape, InexpressibleError, Shape
from ftrace.tracing.events.hit.handlers import Make, native_handler
from ftrace.tracing.events.hit.shortcut_source import NAME, filter_source, hist_source, record_source
from ftrace.tracing.probe_args.layout import RecordLayout
from sandbox.native import i32, ptr, u64
from sandbox.native.function import Options
from sandbox.native.handler import HandlerFunction
from sandbox.native.native_image import NativeImage
from sandbox.threads.tasks import Task

if TYPE_CHECKING:
    from ftrace.tracing.events.event_file import EventFile
    from ftrace.tracing.events.triggers.trigger import Trigger

_images: native_link.Once[NativeImage] = native_link.Once()


class _Code(NamedTuple):
    handler: HandlerFunction
    image: NativeImage
    used: tuple[object, ...] = ()
    """Objects that the code refers to."""

    @property
    def address(self) -> int:
        return self.image.address(NAME)


class Shortcut(NamedTuple):
    """The shortcuts of an event: that of its handler, and the one before a trampoline has saved anything.

    Release it when no hit can be executing the code.
    """

    usual: _Code | None
    early: _Code | None

    @property
    def addresses(self) -> tuple[int, int]:
        """Their addresses; 0 for one that there is not."""
        usual, early = (code.address if code is not None else 0 for code in self)
        return usual, early


def shortcut_of(
    file: EventFile, layout: RecordLayout, shapes: tuple[Shape, EarlyShape | None], make: Make
) -> Shortcut | None:
    """The shortcuts for hits of an event whose only file is `file`; None if all hits go to the handler.

    `shapes`: the probe's, and how hits are handled early. `make`: makes a native function a handler of this kind of probe.
    """
    shape, early_shape = shapes
    usual = _code(file, layout, shape, make) if shape.shortcut else None
    early = _code(file, layout, early_shape, _EARLY[early_shape.cc]) if early_shape is not None else None
    return Shortcut(usual, early) if usual or early else None


def _early_entry(function: FunctionType) -> HandlerFunction:
    """A function that handles entries early, from generated source."""
    return _early(function, EARLY_ENTRY)


def _early_return(function: FunctionType) -> HandlerFunction:
    """A function that handles returns early, from generated source."""
    return _early(function, EARLY_RETURN)


def _early(function: FunctionType, shape: EarlyShape) -> HandlerFunction:
    types = {"state": ptr[EventState], "own": ptr[Task]}
    parameters = [types.get(name, u64) for name in shape.parameters.split(", ")]
    return HandlerFunction(function, Options(bounded=False, cc=shape.cc), {}, parameters, i32)


_EARLY: dict[str, Make] = {EARLY_ENTRY.cc: _early_entry, EARLY_RETURN.cc: _early_return}


def _code(file: EventFile, layout: RecordLayout, shape: Shape, make: Make) -> _Code | None:
    trigger, filter_ = file.triggers.only_hist, file.used_filter
    try:
        if trigger is not None:
            return _counting(file, trigger, layout, shape, make)
        if file.triggers:
            return None
        if filter_ is not None:
            return _shared(native_handler(filter_source(layout, shape, filter_), make))
        if not isinstance(shape, EarlyShape):
            return None
        return _shared(native_handler(record_source(layout, shape), make))
    except InexpressibleError:
        return None


def _shared(handler: HandlerFunction) -> _Code:
    """The code of a handler, which all events of its source use."""
    handler = handler.returning(i32)
    return _Code(handler, _images.get(handler, NAME, lambda: _link(handler)))


def _counting(file: EventFile, trigger: Trigger, layout: RecordLayout, shape: Shape, make: Make) -> _Code:
    from ftrace.tracing.events.hit.hist_shortcut import SHORTCUT_NAMES, number_table

    base, table = number_table(trigger)
    condition = trigger.condition.filter if trigger.condition is not None else None
    handler = native_handler(hist_source(layout, shape, table, condition), make, SHORTCUT_NAMES).returning(i32)
    image = _link(handler)
    image.variable("hist_base").value = base
    image.variable("hist_target").value = file.target
    image.variable("hist_trigger").value = ctypes.addressof(trigger.native)
    return _Code(handler, image, (file, trigger))


def _link(handler: HandlerFunction) -> NativeImage:
    return native_link.link(f"event:{NAME}", native_link.HandlerCode(handler, NAME).verified_object())
