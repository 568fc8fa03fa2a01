"""The roles of handlers of kprobes and kretprobes, and what native ones use of their arguments."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from ftrace.core.handlers import native_link, resolve
from ftrace.core.handlers.kinds import BoundHandler, HandlerRole
from kprobes.hit.records import Instance
from sandbox.native import NativeFunction, i32, void
from sandbox.native.handler import Fields, HandlerFunction
from sandbox.native.tree import Call, Constant, ElementPlace, FieldPlace, Load, Place, nodes

_NUMBERS = frozenset({"flags", "trapnr"})
PRE = HandlerRole("pre_handler", ("p", "regs"), _NUMBERS, i32, False, 1)
POST = HandlerRole("post_handler", ("p", "regs", "flags"), _NUMBERS, void, True, 1)
FAULT = HandlerRole("fault_handler", ("p", "regs", "trapnr"), _NUMBERS, i32, False, 1)
ENTRY = HandlerRole("entry_handler", ("ri", "regs"), _NUMBERS, i32, False, 1)
RETURN = HandlerRole("handler", ("ri", "regs"), _NUMBERS, void, True, 1)

_ignoring: native_link.Once[bool] = native_link.Once()
"""Cached: whether a native handler does not use the registers that it is given."""


def instance_data(code: BoundHandler) -> DataUse:
    """How much of a kretprobe instance's data a native handler uses."""
    native = code.code
    if native is None:
        return DataUse()
    return DataUse(*json.loads(native.cached("instance data", lambda: json.dumps(data_use(native.handler)).encode())))


def keeps_registers(handler: Any) -> bool:
    """Whether it is a native handler that preserves every register but rax and r11."""
    return isinstance(handler, HandlerFunction) and handler.options.cc == "preserve_most"


def registers(handler: NativeFunction | None, role: HandlerRole) -> Fields | None:
    """The fields of `regs` that a native handler uses; None: perhaps all."""
    return resolve.native(handler, role).registers if handler is not None else Fields()


def ignores_registers(handler: NativeFunction) -> bool:
    """Whether a native pre_handler does not use the registers that it is given."""
    return _ignoring.get(handler, PRE.name, lambda: isinstance(handler, HandlerFunction) and not handler.uses(PRE.regs))


_WORD = 8


class DataUse(NamedTuple):
    """Sizes in bytes, from the start of `ri.data`. `used`: read or changed. `changed`: written, or their address is taken."""

    used: int = 0
    changed: int = 0


def data_use(handler: NativeFunction) -> DataUse:
    """The data that a handler and the native functions it calls refer to. An index that is not a constant counts as 0."""
    uses = [_use(function) for function in _reachable(handler)]
    return DataUse(max(use.used for use in uses), max(use.changed for use in uses))


def _reachable(handler: NativeFunction) -> list[NativeFunction]:
    functions = [handler]
    for function in functions:
        called = (call.target for call in nodes(function.typed.body, Call) if isinstance(call.target, NativeFunction))
        functions += [target for target in dict.fromkeys(called) if target not in functions]
    return functions


def _use(function: NativeFunction) -> DataUse:
    body = function.typed.body
    elements = [node for node in nodes(body, ElementPlace) if _is_data(node.base)]
    read = {id(node.place) for node in nodes(body, Load)}
    changed = max((_end(element) for element in elements if id(element) not in read), default=0)
    if sum(map(_is_data, nodes(body, FieldPlace))) > len(elements):  # as a whole
        changed = max(changed, _WORD)
    return DataUse(max(map(_end, elements), default=changed), changed)


def _end(element: ElementPlace) -> int:
    return _WORD * (element.index.value + 1 if isinstance(element.index, Constant) else 1)


def _is_data(place: Place) -> bool:
    return isinstance(place, FieldPlace) and place.struct == Instance and place.field == "data"
