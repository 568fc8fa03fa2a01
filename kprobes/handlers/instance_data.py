"""How much of a kretprobe instance's data native code uses, according to its source."""

from __future__ import annotations

from typing import NamedTuple

from kprobes.hit.records import Instance
from sandbox.native import NativeFunction
from sandbox.native.tree import Call, Constant, ElementPlace, FieldPlace, Load, Place, nodes

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
    found = [handler]
    for function in found:
        called = (call.target for call in nodes(function.typed.body, Call) if isinstance(call.target, NativeFunction))
        found += [target for target in dict.fromkeys(called) if target not in found]
    return found


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
