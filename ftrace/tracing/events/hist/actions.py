"""Parse actions of hist triggers: `onmatch(GROUP.EVENT).trace(...)`, `onmax($x).save(...)`, `onchange($x).snapshot()`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ftrace.tracing.events.hist.errors import HistErrorCode, HistErrors, silent
from ftrace.tracing.events.triggers.interfaces import TraceInstance

ONMATCH, ONMAX, ONCHANGE = "onmatch", "onmax", "onchange"
SAVE, SNAPSHOT, TRACE = "save", "snapshot", "trace"
MAX_PARAMETERS = 64
"""Of an action (SYNTH_FIELDS_MAX)."""


@dataclass(frozen=True)
class Action:
    """An action of a histogram when an entry is added or changed.

    `argument`: the handler's, GROUP.EVENT or a variable, as written. `name`: the action's name as written; `kind`: its
    meaning. `synthetic`: the event to generate; `with_keyword` if it was given as `trace(EVENT, ...)`.
    """

    handler: str
    argument: str
    name: str
    kind: str
    parameters: tuple[str, ...]
    synthetic: str = ""
    with_keyword: bool = False

    @property
    def matched_event(self) -> tuple[str, str]:
        """The group and name of onmatch's event."""
        group, _, name = self.argument.partition(".")
        return group, name

    def listed(self) -> str:
        """The action's text in the trigger file."""
        first = (self.synthetic,) if self.with_keyword else ()
        parameters = () if self.kind is SNAPSHOT else (*first, *self.parameters)
        return f":{self.handler}({self.argument}).{self.name}({','.join(parameters)})"


class ActionParser:
    """Parses the actions of one trigger."""

    def __init__(self, instance: TraceInstance, errors: HistErrors) -> None:
        self._instance = instance
        self._errors = errors

    def parse(self, text: str) -> Action:
        """The action that `text` describes. Raises OSError(EINVAL)."""
        handler, _, rest = text.partition("(")
        argument, closed, rest = rest.partition(")")
        if handler == ONMATCH:
            self._check_event(argument, closed)
        elif not closed:
            raise silent(f"the action is {text!r}; it must end with a closing parenthesis")
        return self._action(handler, argument, rest)

    def _check_event(self, argument: str, closed: str) -> None:
        if not closed:
            raise self._errors.error(HistErrorCode.NO_CLOSING_PAREN, argument)
        group, dot, event = argument.partition(".")
        if not dot:
            raise self._errors.error(HistErrorCode.SUBSYS_NOT_FOUND, argument)
        if self._instance.match_event(group, event) is None:
            raise self._errors.error(HistErrorCode.INVALID_SUBSYS_EVENT, event)

    def _action(self, handler: str, argument: str, text: str) -> Action:
        _, dot, call = text.partition(".")
        name, opened, rest = call.partition("(")
        if not dot or not opened:
            raise self._errors.error(HistErrorCode.ACTION_NOT_FOUND)
        kind = next((kind for kind in (SAVE, SNAPSHOT) if name.startswith(kind)), TRACE)
        inside, closed, _ = rest.partition(")")
        if kind is SNAPSHOT and not closed:
            raise self._errors.error(HistErrorCode.NO_CLOSING_PAREN, inside)
        with_keyword = kind is TRACE and name.startswith("trace")
        parameters = () if kind is SNAPSHOT else tuple(self._parameters(inside, MAX_PARAMETERS + with_keyword))
        if kind is not TRACE and handler == ONMATCH:
            raise self._errors.error(HistErrorCode.ACTION_MISMATCH, name)
        if with_keyword:
            return Action(handler, argument, name, kind, parameters[1:], parameters[0], with_keyword=True)
        return Action(handler, argument, name, kind, parameters, name if kind is TRACE else "")

    def _parameters(self, text: str, limit: int) -> Sequence[str]:
        found = [parameter.strip() for parameter in text.split(",")]
        for index, parameter in enumerate(found):
            if index == limit:
                raise self._errors.error(HistErrorCode.TOO_MANY_PARAMS)
            if len(parameter) < 2:
                raise self._errors.error(HistErrorCode.INVALID_PARAM, parameter)
        return found
