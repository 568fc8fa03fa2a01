"""Resolve the parameters of actions, when their trigger is registered."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field

from ftrace.tracing.events.filters.fields import EventField
from ftrace.tracing.events.hist.actions import ONMATCH, SAVE, TRACE, Action
from ftrace.tracing.events.hist.definition import MAX_VARIABLES
from ftrace.tracing.events.hist.errors import HistErrorCode, HistErrors, silent
from ftrace.tracing.events.hist.expressions import ExpressionParser
from ftrace.tracing.events.hist.histograms import HistRegistry, HistTriggerData, VariableScope
from ftrace.tracing.events.hist.shared_table import Parameter, ResolvedAction, VariableKey
from ftrace.tracing.events.hist.values import HistField
from ftrace.tracing.events.triggers.interfaces import EventFile, TraceInstance


@dataclass(frozen=True)
class ActionResolver:
    """Resolves the actions of one trigger. Raises OSError, mostly with an entry in error_log."""

    event: EventFile
    instance: TraceInstance
    registry: HistRegistry
    scope: VariableScope
    errors: HistErrors
    keys: tuple[HistField, ...]
    """The keys of the histogram being defined."""
    time_unit: int
    """Units of the trace clock in a unit of its times."""
    define: Callable[[EventFile, str], None]
    """Creates a histogram of another event. Errors are logged for the present command."""
    added: list[tuple[EventFile, str]] = field(default_factory=list)
    """The histograms that were created so. They are removed with the trigger that needs them."""

    def resolve(self, actions: tuple[Action, ...]) -> tuple[ResolvedAction, ...]:
        found: list[ResolvedAction] = []
        for action in actions:
            if action.kind is SAVE and any(other.action.kind is SAVE for other in found):
                raise self.errors.error(HistErrorCode.TOO_MANY_SAVE_ACTIONS, None, errno.EEXIST)
            found.append(self._resolved(action))
        return tuple(found)

    def _resolved(self, action: Action) -> ResolvedAction:
        tracks = "" if action.handler == ONMATCH else self._tracked(action.argument)
        if action.kind is TRACE:
            parameters, refers = self._synthetic(action)
            return ResolvedAction(action, tracks, parameters, refers)
        saved = [self._saved(text) for text in action.parameters]
        read = tuple(key for _, found in saved for key in found.refers if isinstance(key, VariableKey))
        return ResolvedAction(action, tracks, tuple(parameter for parameter, _ in saved), read)

    def _tracked(self, argument: str) -> str:
        if not argument.startswith("$"):
            raise self.errors.error(HistErrorCode.ONX_NOT_VAR, argument)
        if self.scope.own(argument[1:]) is None:
            raise self.errors.error(HistErrorCode.ONX_VAR_NOT_FOUND, argument[1:])
        self._refer(argument[1:])
        if not self.scope.add():
            raise self.errors.error(HistErrorCode.ONX_VAR_CREATE_FAIL)
        return argument[1:]

    def _refer(self, key: object) -> None:
        if not self.scope.refer(key):
            raise silent(f"the trigger uses more than {MAX_VARIABLES} variables", errno.ENOMEM)

    def _saved(self, text: str) -> tuple[Parameter, HistField]:
        found = self._field_for(text)
        if found is None:
            raise self.errors.error(HistErrorCode.FIELD_VAR_CREATE_FAIL, text)
        return Parameter(text, value=found.value), found

    def _field_for(self, text: str) -> HistField | None:
        """A field of the event, for a variable of its name. If there is none: None, and an entry in error_log."""
        try:
            found = ExpressionParser(self.event, self.scope, self.errors, self.time_unit).atom(text)
        except OSError:
            self.errors.error(HistErrorCode.FIELD_VAR_PARSE_FAIL, text)
            return None
        if self.scope.is_defined(text) or not self.scope.add():
            self.errors.error(HistErrorCode.VAR_CREATE_FIND_FAIL, text)
            return None
        return found

    def _synthetic(self, action: Action) -> tuple[tuple[Parameter, ...], tuple[VariableKey, ...]]:
        fields = self.instance.find_synthetic(action.synthetic)
        if fields is None:
            raise self.errors.error(HistErrorCode.SYNTH_EVENT_NOT_FOUND, action.synthetic)
        parameters: list[Parameter] = []
        refers: list[VariableKey] = []
        for index, text in enumerate(action.parameters):
            found, parameter = self._parameter(action, text)
            if index >= len(fields) or not _fits(fields[index], found):
                raise self.errors.error(HistErrorCode.SYNTH_TYPE_MISMATCH, text.rpartition(".")[2])
            self._refer(parameter.variable or (found.refers[0] if found.refers else object()))
            parameters.append(parameter)
            refers += [key for key in found.refers if parameter.value is not None and isinstance(key, VariableKey)]
        if len(parameters) != len(fields):
            raise self.errors.error(HistErrorCode.SYNTH_COUNT_MISMATCH, action.synthetic)
        return tuple(parameters), tuple(refers)

    def _parameter(self, action: Action, text: str) -> tuple[HistField, Parameter]:
        parts = text.split(".", 2)
        if len(parts) == 2:
            raise silent(f"the parameter is {text!r}; it must be NAME or GROUP.EVENT.NAME")
        group, event, name = parts if len(parts) == 3 else ("", "", text)
        if name.startswith("$"):
            return self._variable(action, group, event, name[1:])
        if not group or (group, event) == (self.event.group, self.event.name):
            found = self._field_for(name)
            if found is not None:
                return found, Parameter(name, value=found.value)
        return self._other_field(group, event, name, action)

    def _variable(self, action: Action, group: str, event: str, name: str) -> tuple[HistField, Parameter]:
        own = self.scope.own(name)
        if own is not None and (not group or (group, event) == (self.event.group, self.event.name)):
            return own, Parameter(name, variable=name)
        if not group and action.handler == ONMATCH:
            group, event = action.matched_event
        found = self.scope.find(group, event, name)
        if found is None:
            raise self.errors.error(HistErrorCode.PARAM_NOT_FOUND, name)
        return found, Parameter(name, value=found.value)

    def _other_field(self, group: str, event: str, name: str, action: Action) -> tuple[HistField, Parameter]:
        """A field of the matched event. A histogram with a variable for the field is created on that event."""
        if not group and action.handler == ONMATCH:
            group, event = action.matched_event
        if not event:
            raise silent(f"the field is {name!r}; it must be a field of {self.event.group}.{self.event.name}")
        other = self.instance.match_event(group, event)
        if other is None:
            raise self.errors.error(HistErrorCode.EVENT_FILE_NOT_FOUND, name)
        compatible = self._compatible(other)
        if compatible is None:
            raise self.errors.error(HistErrorCode.HIST_NOT_FOUND, name)
        variable = f"synthetic_{name}"
        found = self.scope.find(group, event, variable)
        if found is None:
            self._add_histogram(other, compatible, f"{variable}={name}")
            found = self.scope.find(group, event, variable)
        if found is None:
            raise self.errors.error(HistErrorCode.HIST_CREATE_FAIL, name)
        return found, Parameter(name, value=found.value)

    def _compatible(self, other: EventFile) -> HistTriggerData | None:
        """The first histogram of an event whose keys fit those of the histogram being defined; None if there is none."""
        wanted = [_key_shape(key) for key in self.keys]
        return next(
            (
                each
                for each in self.registry.triggers
                if each.event is other and [_key_shape(key) for key in each.definition.keys] == wanted
            ),
            None,
        )

    def _add_histogram(self, other: EventFile, like: HistTriggerData, assignment: str) -> None:
        keys = ",".join(key.name for key in like.definition.keys)
        text = f"keys={keys}:{assignment}{like.condition_text}"
        try:
            self.define(other, text)
        except OSError:
            raise self.errors.error(HistErrorCode.HIST_CREATE_FAIL, assignment.partition("=")[2]) from None
        self.added.append((other, text))


def _key_shape(key: HistField) -> tuple[object, ...]:
    return key.type, key.key_size, key.signed


def _fits(wanted: EventField, found: HistField) -> bool:
    """As check_synth_field(): text of any length accepts any text, a stack any stack; numbers need equal size and sign."""
    if "long[" in wanted.type:
        return "long[" in found.type
    if "char[" in wanted.type or "char[" in found.type:
        is_text = "char[" in wanted.type and "char[" in found.type
        return is_text and ("__data_loc" in wanted.type or wanted.size == found.size)
    return wanted.type == found.type or (wanted.size == found.size and wanted.signed == found.signed)
