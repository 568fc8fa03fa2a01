"""Histograms that Python updates from queued hits: with variables, actions, expressions or times; and of synthetic events."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ftrace.events.hist.actions import ONMATCH, ONMAX, SAVE, SNAPSHOT, Action
from ftrace.events.hist.definition import Definition
from ftrace.events.hist.queue_records import QueueTarget
from ftrace.events.hist.text import Contents, Entry, Snapshot
from ftrace.events.hist.values import MASK, Comm, HistField, Hit, Sort, Stack, TextValue, Value
from ftrace.events.triggers.interfaces import NativeCall, Origin
from sandbox.process.once import cached_property

Key = tuple["int | bytes", ...]


class VariableKey(NamedTuple):
    """The identity of a variable: its histogram and its name."""

    table: QueuedHistogram
    name: str


@dataclass
class _Element:
    """An entry (struct tracing_map_elt)."""

    sums: list[int]
    comm: str
    variables: dict[str | None, int | bytes] = field(default_factory=dict)
    tracked: dict[int, int] = field(default_factory=dict)
    saved: Sequence[tuple[str, int | bytes]] = ()

    def frozen(self, key: Key) -> Entry:
        return Entry(key, tuple(self.sums), self.comm, dict(self.tracked), self.saved)


@dataclass(frozen=True)
class Parameter:
    """An action's parameter: a variable of the same histogram, or a value of the hit."""

    name: str
    variable: str = ""
    value: Value | None = None


@dataclass(frozen=True)
class ResolvedAction:
    """An action with resolved parameters. `tracks`: the histogram's variable that onmax and onchange compare."""

    action: Action
    tracks: str = ""
    parameters: tuple[Parameter, ...] = ()
    refers: tuple[VariableKey, ...] = ()


class QueuedHistogram:
    """A histogram that is updated when its queue is drained."""

    def __init__(self, definition: Definition) -> None:
        self.actions: tuple[ResolvedAction, ...] = ()
        self.target: Any = QueueTarget.ctypes()
        self.call: NativeCall
        self.generate: Callable[[str, Sequence[int | bytes], Origin], None] = lambda *_: None
        self.take_snapshot: Callable[[int], None] = lambda _stamp: None
        self._definition = definition
        self._elements: dict[Key, _Element] = {}
        self._hits = 0
        self._dropped = 0
        self._snapshot: Snapshot | None = None

    @property
    def uses_stack(self) -> bool:
        """Whether a key, a variable or a parameter of an action is the stack of the hit."""
        parameters = (each.value for action in self.actions for each in action.parameters)
        fields = (each.value for each in (*self._definition.keys, *self._definition.variables))
        return any(isinstance(value, Stack) for value in (*fields, *parameters))

    @cached_property
    def refers(self) -> Mapping[VariableKey, bool]:
        """The variables of other histograms that this one reads, and whether a read unsets them."""
        found: dict[VariableKey, bool] = {}
        for each in (*self._definition.values, *self._definition.variables):
            for key in each.refers:
                assert isinstance(key, VariableKey)
                found[key] = found.get(key, False) or each.sort is Sort.EXPRESSION
        for action in self.actions:
            for key in action.refers:
                found.setdefault(key, False)
        return found

    def count(self, hit: Hit) -> None:
        """Count a hit, unless a required variable is not set for the hit's key."""
        key = tuple(_key_part(each, hit) for each in self._definition.keys)
        variables = self._resolved(key)
        if variables is None:
            return
        if variables:
            hit = Hit(hit.record, hit.timestamp, hit.context, hit.stack, variables)
        element = self._elements.get(key)
        if element is None:
            if len(self._elements) >= self._definition.size:
                self._dropped += 1
                return
            element = self._elements[key] = self._new_element(hit)
        self._hits += 1
        self._update(element, hit)
        for index, action in enumerate(self.actions):
            self._act(index, action, key, element, hit)

    def _new_element(self, hit: Hit) -> _Element:
        """An entry of zeros; a text that was not saved yet is a null pointer in the kernel."""
        parameters = (each for action in self.actions if action.action.kind is SAVE for each in action.parameters)
        saved = [(each.name, b"(null)" if isinstance(each.value, TextValue | Comm) else 0) for each in parameters]
        comm = hit.context.comm.decode("utf-8", "surrogateescape")
        return _Element([0] * (1 + len(self._definition.values)), comm, saved=saved)

    def value_of(self, key: Key, name: str, use_up: bool) -> int | bytes | None:
        """A variable of the entry `key`; None if it is not set. `use_up` unsets it."""
        element = self._elements.get(key)
        if element is None:
            return None
        return element.variables.pop(name, None) if use_up else element.variables.get(name)

    def contents(self) -> Contents:
        """The entries and totals."""
        entries = [element.frozen(key) for key, element in self._elements.items()]
        return Contents(entries, self._hits, self._dropped + self.target.dropped, self._snapshot)

    def clear(self) -> None:
        """Remove all entries."""
        self._elements.clear()
        self._hits = self._dropped = self.target.dropped = 0
        self._snapshot = None

    def _resolved(self, key: Key) -> dict[object, int | bytes] | None:
        found: dict[object, int | bytes] = {}
        for wanted, use_up in self.refers.items():
            value = wanted.table.value_of(key, wanted.name, use_up)
            if value is None:
                return None
            found[wanted] = value
        return found

    def _update(self, element: _Element, hit: Hit) -> None:
        for index, value in enumerate((1, *(each.value.number(hit) for each in self._definition.values))):
            element.sums[index] = (element.sums[index] + value) & MASK
        for variable in self._definition.variables:
            element.variables[variable.variable] = variable.value.of(hit)

    def _act(self, index: int, resolved: ResolvedAction, key: Key, element: _Element, hit: Hit) -> None:
        action = resolved.action
        if action.handler != ONMATCH and not self._has_moved(index, resolved, element):
            return
        if action.kind is SAVE:
            element.saved = [(each.name, _saved(each, element, hit)) for each in resolved.parameters]
        elif action.kind is SNAPSHOT:
            self._note_snapshot(index, action, key, element, hit.timestamp)
        else:
            values = [_parameter(each, element, hit) for each in resolved.parameters]
            self.generate(action.synthetic, values, hit.origin)

    def _has_moved(self, index: int, resolved: ResolvedAction, element: _Element) -> bool:
        """Whether the tracked variable exceeds (onmax) or differs from (onchange) its last value, which is updated."""
        value, before = element.variables[resolved.tracks], element.tracked.get(index, 0)
        if not isinstance(value, int):
            return False
        moved = value > before if resolved.action.handler == ONMAX else value != before
        element.tracked[index] = value if moved else before
        return moved

    def _note_snapshot(self, index: int, action: Action, key: Key, element: _Element, stamp: int) -> None:
        """Take a snapshot if the value is above (onmax) or differs from (onchange) the last snapshot's, whatever its entry."""
        value, before = element.tracked[index], self._snapshot.value if self._snapshot else 0
        if value > before if action.handler == ONMAX else value != before:
            self._snapshot = Snapshot(action, value, element.frozen(key))
            self.take_snapshot(stamp)


def _key_part(field: HistField, hit: Hit) -> int | bytes:
    return field.value.of(hit)


def _parameter(parameter: Parameter, element: _Element, hit: Hit) -> int | bytes:
    if parameter.value is None:
        return element.variables[parameter.variable]
    return parameter.value.of(hit)


def _saved(parameter: Parameter, element: _Element, hit: Hit) -> int | bytes:
    """A value as it is shown later: of a stack, which the kernel shows as a pointer, the innermost address."""
    value = _parameter(parameter, element, hit)
    if isinstance(parameter.value, Stack) and isinstance(value, bytes):
        return int.from_bytes(value[:8], "little")
    return value


def pointer_to(target: Any) -> int:
    """The address of a native structure, for the argument of a trigger's call."""
    return ctypes.addressof(target)
