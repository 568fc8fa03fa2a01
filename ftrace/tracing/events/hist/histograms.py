"""The histograms of one trace instance, with their variables and their names."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Protocol
from weakref import WeakKeyDictionary

from ftrace.tracing.events.hist.actions import ONMATCH, Action
from ftrace.tracing.events.hist.definition import MAX_VARIABLES, Definition
from ftrace.tracing.events.hist.errors import HistErrorCode, HistErrors
from ftrace.tracing.events.hist.expressions import reference
from ftrace.tracing.events.hist.per_thread_table import PerThreadHistogram
from ftrace.tracing.events.hist.shared_table import SharedHistogram, VariableKey
from ftrace.tracing.events.hist.values import HistField
from ftrace.tracing.events.triggers.interfaces import EventFile, TraceInstance

_OPERATORS = "+-*/"
Histogram = PerThreadHistogram | SharedHistogram


class HistTriggerData(Protocol):
    """A registered hist trigger (struct hist_trigger_data): its event, its definition and its table."""

    event: EventFile
    definition: Definition
    table: Histogram

    @property
    def condition_text(self) -> str:
        """` if FILTER`; empty without a condition."""


class HistRegistry:
    """The histograms of an instance, in the order of their creation."""

    def __init__(self, instance: TraceInstance) -> None:
        self._instance = weakref.ref(instance)
        self.triggers: list[HistTriggerData] = []

    @property
    def instance(self) -> TraceInstance:
        """The trace instance, which outlives its histograms."""
        instance = self._instance()
        assert instance is not None
        return instance

    def with_variable(self, name: str) -> Iterator[HistTriggerData]:
        """The triggers with a variable of that name."""
        for trigger in self.triggers:
            if any(variable.variable == name for variable in trigger.definition.variables):
                yield trigger

    def is_referred_to(self, table: object) -> bool:
        """Whether another histogram uses a variable of this one."""
        return any(
            key.table is table
            for trigger in self.triggers
            if isinstance(trigger.table, SharedHistogram) and trigger.table is not table
            for key in trigger.table.refers
        )


_registries: WeakKeyDictionary[TraceInstance, HistRegistry] = WeakKeyDictionary()


def registry_of(instance: TraceInstance) -> HistRegistry:
    """The histograms of an instance."""
    made = _registries.get(instance)
    if made is None:
        made = _registries[instance] = HistRegistry(instance)
    return made


def named(name: str) -> HistTriggerData | None:
    """The first trigger of that name in any instance; None if there is none. find_named_trigger() has one list of them."""
    triggers = (each for registry in list(_registries.values()) for each in registry.triggers)
    return next((each for each in triggers if name and each.definition.attributes.name == name), None)


class VariableScope:
    """Resolves names of variables in one definition."""

    def __init__(self, event: EventFile, registry: HistRegistry, errors: HistErrors, remove: bool) -> None:
        self._event = event
        self._registry = registry
        self._errors = errors
        self._remove = remove
        self._texts: Sequence[tuple[str, str]] = ()
        self._matched: list[tuple[str, str]] = []
        self._made: dict[str, HistField] = {}
        self._unnamed = 0
        self._used: set[object] = set()

    def define(self, definitions: Sequence[tuple[str, str]], actions: Sequence[Action]) -> None:
        """Set the names and expressions of the trigger's own variables, and its actions."""
        self._texts = definitions
        self._matched = [action.matched_event for action in actions if action.handler == ONMATCH]

    def is_defined(self, name: str) -> bool:
        """Whether the trigger has already made a variable of that name, or another trigger of its event has one."""
        others = (each for each in self._registry.with_variable(name) if each.event is self._event)
        return not self._remove and (name in self._made or any(True for _ in others))

    def defined(self, name: str, variable: HistField) -> None:
        """Add a variable that the trigger has made."""
        self._made[name] = variable

    def add(self) -> bool:
        """Make a variable for an action: of a field, or of a maximum. Returns False if there are too many."""
        self._unnamed += 1
        return len(self._made) + self._unnamed <= MAX_VARIABLES

    def refer(self, key: object) -> bool:
        """Note that the trigger uses a variable. Returns False if it uses too many."""
        self._used.add(key)
        return len(self._used) <= MAX_VARIABLES

    def own(self, name: str) -> HistField | None:
        """The trigger's own variable; None if it has none of that name."""
        return self._made.get(name)

    def local(self, group: str, event: str, name: str) -> str | None:
        """The expression of a variable of the trigger being defined; None if it is not such a variable."""
        if group and (group, event) != (self._event.group, self._event.name):
            return None
        for known, text in self._texts:
            is_reference = text.startswith("$") and len(text) > 1
            if known == name and not is_reference and not any(operator in text for operator in _OPERATORS):
                return text
        return None

    def find(self, group: str, event: str, name: str) -> HistField | None:
        """A reference to a variable of another trigger: of a matched event, else of the only event with such a variable."""
        candidates = list(self._registry.with_variable(name))
        if group:
            candidates = [each for each in candidates if (each.event.group, each.event.name) == (group, event)]
        else:
            matched = [each for each in candidates if (each.event.group, each.event.name) in self._matched]
            candidates = matched or candidates
        if len({id(each.event) for each in candidates}) > 1:
            self._errors.error(HistErrorCode.VAR_NOT_UNIQUE, name)
            return None
        return _reference(candidates[0], f"{group}.{event}.{name}" if group else name, name) if candidates else None


def _reference(trigger: HistTriggerData, shown: str, name: str) -> HistField:
    assert isinstance(trigger.table, SharedHistogram)
    variable = next(each for each in trigger.definition.variables if each.variable == name)
    return reference(shown, VariableKey(trigger.table, name), variable)
