"""SharedHistogram: create and read histograms with variables or actions, which all threads count in (see map_records)."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ftrace.hit.events import map_records
from ftrace.hit.events.map_records import TEXT_ROOM, VARIABLE_HEAD, HistMap, Pads
from ftrace.hit.events.operations import NUMBER_KIND, STACK_KIND, STACK_WORDS, TEXT_KIND, Program
from ftrace.hit.events.tracing_map import HEADER, MapHeader
from ftrace.tracing.events.filters.predicates import COMM_SIZE
from ftrace.tracing.events.hist.actions import ONCHANGE, ONMATCH, ONMAX, SAVE, SNAPSHOT, TRACE, Action
from ftrace.tracing.events.hist.definition import Definition
from ftrace.tracing.events.hist.native_image import hist_image
from ftrace.tracing.events.hist.programs import OwnVariable, kind_of, made_program, made_source
from ftrace.tracing.events.hist.text import Contents, Entry, Snapshot, decoded_key
from ftrace.tracing.events.hist.values import Sort, Value
from ftrace.tracing.events.triggers.interfaces import NativeCall, TraceInstance
from sandbox.memory import mappings
from sandbox.process.once import cached_property, once
from sandbox.threads import tasks

_WORD = 8
_ROOM = {NUMBER_KIND: 0, TEXT_KIND: TEXT_ROOM, STACK_KIND: STACK_WORDS * _WORD}
"""Bytes that an entry has for a variable besides its head."""
_HANDLERS = {ONMATCH: map_records.ON_MATCH, ONMAX: map_records.ON_MAX, ONCHANGE: map_records.ON_CHANGE}
_KINDS = {TRACE: map_records.DO_GENERATE, SAVE: map_records.DO_SAVE, SNAPSHOT: map_records.DO_SNAPSHOT}


class VariableKey(NamedTuple):
    """The identity of a variable: its histogram and its name."""

    table: SharedHistogram
    name: str

    @property
    def kind(self) -> int:
        """Whether it is a number, a text or a stack."""
        return self.table.own_variable(self.name).kind


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


@once
def _pads() -> int:
    """Address of the first thread's Pads. Pages are charged when they are touched."""
    return mappings.reserve(Pads.size * tasks.CAPACITY)


class _Area:
    """The memory of a table's entries."""

    def __init__(self, size: int) -> None:
        self.address = mappings.reserve(size)
        weakref.finalize(self, mappings.release, self.address, size).atexit = False


class SharedHistogram:
    """A histogram with one table. `actions`: the definition's, with resolved parameters."""

    def __init__(self, definition: Definition, actions: Sequence[ResolvedAction], instance: TraceInstance) -> None:
        self._definition = definition
        self._instance = instance
        self.actions = tuple(actions)
        self.native: Any = HistMap.ctypes()
        """The native half, which hits use."""
        self._keep: list[object] = []
        """What the native half points to."""
        self._size = 0
        self._lay_out()
        self._area = _Area(self._area_size())
        self.native.map.area = self._area.address
        self.call = NativeCall(hist_image().address("count_in_map"), ctypes.addressof(self.native), self)

    def own_variable(self, name: str) -> OwnVariable:
        """The variable `name` of this trigger: its position among all, and its kind."""
        variables = self._definition.variables
        return next(
            OwnVariable(index, kind_of(each.value)) for index, each in enumerate(variables) if each.variable == name
        )

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

    # -- the native half ------------------------------------------------------------------------------------------

    def _lay_out(self) -> None:
        """Fill in the native half: an entry has the key, the sums, the task's name, the variables, and what actions keep."""
        native, definition = self.native, self._definition
        size = definition.size
        native.map.mask, native.map.limit, native.map.capacity = 2 * size - 1, size, size + tasks.CAPACITY
        native.map.shift = 64 - (2 * size - 1).bit_length()
        native.map.entries = HEADER + 2 * size * _WORD
        native.map.key_words = sum(key.key_size // _WORD for key in definition.keys)
        self._claim(native.map.key_words * _WORD)
        native.sums = self._claim(_WORD * (1 + len(definition.values)))
        native.map.comm = self._claim(COMM_SIZE)
        native.source = source = made_source(self._instance)
        self._keep.append(source)
        native.pads = _pads()
        self._places = {key: index for index, key in enumerate(self.refers)}
        self._set(
            "key", map_records.MapKey, [(self._program(key.value), key.key_size // _WORD) for key in definition.keys]
        )
        self._set("value", Program, [self._program(value.value, as_number=True) for value in definition.values])
        self._set("variable", map_records.Assignment, list(self._variables()))
        self._set("reference", map_records.Reference, list(self._references()))
        self._set("action", map_records.Action, [self._action(action) for action in self.actions])
        native.map.entry = self._size

    def _claim(self, size: int) -> int:
        """The place in an entry of the next `size` bytes."""
        place = self._size
        self._size += size
        return place

    def _program(self, value: Value | OwnVariable, as_number: bool = False) -> Any:
        made = made_program(value, self._places, as_number)
        self._keep.append(made)
        return made

    def _set(self, name: str, structure: Any, rows: Sequence[Any]) -> None:
        """Point to an array of structures, made from rows of their fields."""
        made = (structure.ctypes * len(rows))()
        for index, row in enumerate(rows):
            made[index] = row if isinstance(row, structure.ctypes) else structure.ctypes(*row)
        self._keep.append(made)
        setattr(self.native, f"{name}s", ctypes.addressof(made))
        setattr(self.native, f"{name}_count", len(rows))

    def _variables(self) -> Iterator[tuple[Any, int]]:
        self._variable_places = {}
        for variable in self._definition.variables:
            place = self._claim(VARIABLE_HEAD + _ROOM[kind_of(variable.value)])
            self._variable_places[variable.variable] = place
            yield self._program(variable.value), place

    def _references(self) -> Iterator[tuple[int, int, int, int]]:
        for key, is_used_up in self.refers.items():
            self._keep.append(key)
            yield (
                ctypes.addressof(key.table.native), key.table._variable_places[key.name], _ROOM[key.kind],
                int(is_used_up),
            )  # fmt: skip

    def _action(self, resolved: ResolvedAction) -> Any:
        action = resolved.action
        made = map_records.Action.ctypes(handler=_HANDLERS[action.handler], kind=_KINDS[action.kind])
        if resolved.tracks:
            made.variable = self.own_variable(resolved.tracks).index
        made.tracked = self._claim(_WORD)
        made.saved = self._claim(_WORD)
        rows = [self._parameter(each, action.kind is SAVE) for each in resolved.parameters]
        parameters = (map_records.Assignment.ctypes * len(rows))(*rows)
        made.parameters, made.count = ctypes.addressof(parameters), len(rows)
        call = self._call(action)
        made.call, made.argument = call.address, call.argument
        self._keep += [parameters, call]
        return made

    def _parameter(self, parameter: Parameter, is_saved: bool) -> Any:
        value = self._value_of(parameter)
        place = self._claim(TEXT_ROOM if kind_of(value) == TEXT_KIND else _WORD) if is_saved else 0
        return map_records.Assignment.ctypes(self._program(value), place)

    def _value_of(self, parameter: Parameter) -> Value | OwnVariable:
        return self.own_variable(parameter.variable) if parameter.value is None else parameter.value

    def _call(self, action: Action) -> NativeCall:
        if action.kind is TRACE:
            return self._instance.generator(action.synthetic)
        return self._instance.snapshot if action.kind is SNAPSHOT else NativeCall(0)

    def _area_size(self) -> int:
        size: int = self.native.map.entries + self.native.map.capacity * self.native.map.entry
        return -(-size // mappings.PAGE) * mappings.PAGE

    # -- reading --------------------------------------------------------------------------------------------------

    @property
    def _header(self) -> Any:
        return MapHeader.ctypes.from_address(self._area.address)

    def contents(self) -> Contents:
        """The entries and totals."""
        header = self._header
        entries = [self._entry(address) for address in self._addresses()]
        return Contents(entries, header.hits, header.dropped, self._snapshot())

    def clear(self) -> None:
        """Remove all entries. Hits that are being counted may still use the old ones."""
        old, self._area = self._area, _Area(self._area_size())
        self.native.map.area = self._area.address
        self._instance.free_after_hits(old)

    def _addresses(self) -> Iterator[int]:
        native = self.native.map
        places = (ctypes.c_uint64 * (native.mask + 1)).from_address(self._area.address + HEADER)
        first = self._area.address + native.entries
        return (first + ((place & 0xFFFF_FFFF) - 1) * native.entry for place in places[:] if place)

    def _entry(self, address: int) -> Entry:
        native, definition = self.native, self._definition
        key = decoded_key(definition, ctypes.string_at(address, native.map.key_words * _WORD))
        sums = (ctypes.c_uint64 * (1 + len(definition.values))).from_address(address + native.sums)
        comm = ctypes.string_at(address + native.map.comm, COMM_SIZE).partition(b"\0")[0]
        return Entry(
            key,
            tuple(sums),
            comm.decode("utf-8", "surrogateescape"),
            dict(self._tracked(address)),
            self._saved(address),
        )

    def _tracked(self, address: int) -> Iterator[tuple[int, int]]:
        """The latest value of each action that tracks one."""
        for index, resolved in enumerate(self.actions):
            if resolved.tracks:
                yield index, _word(address + self._native_action(index).tracked)

    def _native_action(self, index: int) -> Any:
        return map_records.Action.ctypes.from_address(self.native.actions + index * map_records.Action.size)

    def _saved(self, address: int) -> list[tuple[str, int | bytes]]:
        """What save() has kept; a text that was not saved yet is a null pointer in the kernel."""
        for index, resolved in enumerate(self.actions):
            if resolved.action.kind is SAVE:
                action = self._native_action(index)
                is_saved = _word(address + action.saved)
                return [
                    (each.name, self._saved_value(each, address + at, bool(is_saved)))
                    for each, at in zip(resolved.parameters, _places(action), strict=True)
                ]
        return []

    def _saved_value(self, parameter: Parameter, at: int, is_saved: bool) -> int | bytes:
        if kind_of(self._value_of(parameter)) != TEXT_KIND:
            return _word(at)
        return ctypes.string_at(at, TEXT_ROOM).partition(b"\0")[0] if is_saved else b"(null)"

    def _snapshot(self) -> Snapshot | None:
        header = self._header
        if not header.snapshot_entry:
            return None
        action = self.actions[header.snapshot_action].action
        return Snapshot(action, header.snapshot_value, self._entry(header.snapshot_entry))


def _word(address: int) -> int:
    return int(ctypes.c_uint64.from_address(address).value)


def _places(action: Any) -> Iterable[int]:
    """The places in an entry of an action's parameters."""
    step = map_records.Assignment.size
    return (
        map_records.Assignment.ctypes.from_address(action.parameters + index * step).at for index in range(action.count)
    )
