"""The trigger command `hist`, and histograms as triggers."""

from __future__ import annotations

import contextlib
import errno

from ftrace.hit.events.records import LATE_HIST
from ftrace.tracing.events.filters.parser import SPACES
from ftrace.tracing.events.hist.actions import SNAPSHOT, TRACE
from ftrace.tracing.events.hist.definition import Definition, parse_definition
from ftrace.tracing.events.hist.errors import HistErrorCode, HistErrors, silent
from ftrace.tracing.events.hist.histograms import Histogram, HistRegistry, VariableScope, named, registry_of
from ftrace.tracing.events.hist.per_thread_table import PerThreadHistogram
from ftrace.tracing.events.hist.resolution import ActionResolver
from ftrace.tracing.events.hist.shared_table import SharedHistogram
from ftrace.tracing.events.hist.text import histogram_text
from ftrace.tracing.events.triggers.interfaces import SYNTHETIC, EventFile, TraceInstance
from ftrace.tracing.events.triggers.trigger import Condition, Trigger
from ftrace.tracing.events.triggers.trigger_file import COMMANDS, EventTriggers, parse_condition
from sandbox.process.once import once


class HistTrigger(Trigger):
    """A hist trigger. Triggers with the same name share a table."""

    is_hist = True
    needs_record = True

    def __init__(
        self, event: EventFile, definition: Definition, condition: Condition | None, registry: HistRegistry
    ) -> None:
        super().__init__(condition)
        self.event = event
        self.definition = definition
        self._registry = registry
        self.table: Histogram
        self.needs: list[tuple[EventFile, str]] = []
        """Histograms of other events that were created for parameters of its actions: event and definition."""
        self.native.is_hist = 1
        self.native.paused = int(definition.attributes.pause)

    @property
    def identity(self) -> object:
        return "hist", self.definition.identity, self.condition_text

    @property
    def head(self) -> str:
        return self.definition.listed()

    @property
    def is_referred_to(self) -> bool:
        return self._registry.is_referred_to(self.table)

    @property
    def is_paused(self) -> bool:
        """Whether counting is paused."""
        return bool(self.native.paused)

    def use(self, table: Histogram, definition: Definition) -> None:
        """Count in a table with the keys and values of `definition`."""
        self.table, self.definition = table, definition
        self.native.post = LATE_HIST if isinstance(table, SharedHistogram) else 0
        self._call(table.call)

    def line(self) -> str:
        """The line in the trigger file."""
        return f"{self.head}{self.condition_text} [{'paused' if self.is_paused else 'active'}]"

    def text(self) -> str:
        """The section of the hist file."""
        return histogram_text(self.line(), self.definition, self.table.contents())

    def clear(self) -> None:
        """Remove all entries."""
        self.table.clear()

    def register(self) -> None:
        if self._takes_snapshots:
            self._registry.instance.condition_snapshot(True)
        self._registry.triggers.append(self)
        self._refer(1)

    def unregister(self) -> None:
        self._registry.triggers.remove(self)
        self._refer(-1)
        if self._takes_snapshots:
            self._registry.instance.condition_snapshot(False)
        for event, text in self.needs:
            # A histogram that others use too is kept.
            with contextlib.suppress(OSError):
                _run_on(event, text, remove=True)

    @property
    def _takes_snapshots(self) -> bool:
        return any(action.kind == SNAPSHOT for action in self.definition.actions)

    def _refer(self, by: int) -> None:
        for action in self.definition.actions:
            if action.kind is TRACE:
                self._registry.instance.refer_to_synthetic(action.synthetic, by)


def read_hists(triggers: EventTriggers) -> str:
    """The text of an event's `hist` file: a section for each histogram."""
    return "\n\n".join(trigger.text() for trigger in triggers.hists if isinstance(trigger, HistTrigger))


def hist_command(triggers: EventTriggers, _name: str, parameters: str, remove: bool) -> None:
    """`hist:PARAMETERS[ if FILTER]`. Raises OSError, mostly with an entry in error_log."""
    if not parameters:
        raise silent("the hist trigger has no keys; add keys=FIELD")
    text, condition = _separate(parameters)
    _Command(triggers, parameters, remove).run(text, condition)


def _run_on(event: EventFile, parameters: str, remove: bool, errors: HistErrors | None = None) -> None:
    """Define or remove a histogram of another event."""
    assert isinstance(event.triggers, EventTriggers)
    _Command(event.triggers, parameters, remove, errors).run(*_separate(parameters))


def _separate(parameters: str) -> tuple[str, str]:
    """Split into the parameters, which may contain blanks, and the condition from `if` on."""
    at = parameters.find("if")
    while at >= 0:
        if at == 0 or (at >= len(parameters) - 3 and parameters[at - 1] in " \t"):
            raise silent(
                f"the parameters are {parameters!r}; `if` must have parameters before it and a filter after it"
            )
        if parameters[at - 1] in " \t" and parameters[at + 2] in " \t":
            return parameters[: at - 1].strip(SPACES), parameters[at:].strip(SPACES)
        at = parameters.find("if", at + 1)
    return parameters, ""


class _Command:
    """One write of a hist trigger to a trigger file."""

    def __init__(
        self, triggers: EventTriggers, parameters: str, remove: bool, errors: HistErrors | None = None
    ) -> None:
        self._triggers = triggers
        self._event: EventFile = triggers.event
        self._instance: TraceInstance = triggers.instance
        self._remove = remove
        self._errors = errors or HistErrors(self._event, self._instance, parameters)
        self._registry = registry_of(self._instance)
        self._scope = VariableScope(self._event, self._registry, self._errors, remove)

    def run(self, text: str, condition: str) -> None:
        definition = parse_definition(text, self._event, self._instance, self._scope, self._errors)
        made = HistTrigger(self._event, definition, parse_condition(condition, self._triggers), self._registry)
        existing = self._triggers.find(made.identity)
        assert existing is None or isinstance(existing, HistTrigger)
        if self._remove:
            self._take_off(existing)
        elif existing is not None and definition.attributes.updates_only:
            self._change(existing, definition)
        else:
            self._put_on(made, existing)

    def _take_off(self, existing: HistTrigger | None) -> None:
        if existing is None:
            return
        if existing.is_referred_to:
            raise OSError(
                errno.EBUSY, f"another histogram uses a variable of {existing.head}; remove that histogram first"
            )
        self._triggers.remove(existing)

    def _change(self, existing: HistTrigger, definition: Definition) -> None:
        attributes = definition.attributes
        if attributes.pause or attributes.cont:
            existing.native.paused = int(attributes.pause)
        else:
            existing.clear()

    def _put_on(self, made: HistTrigger, existing: HistTrigger | None) -> None:
        attributes = made.definition.attributes
        first = named(attributes.name)
        if first is not None and first.definition.identity != made.definition.identity:
            raise self._errors.error(HistErrorCode.NAMED_MISMATCH, f"name={attributes.name}")
        if existing is not None:
            raise self._errors.error(HistErrorCode.TRIGGER_EEXIST, None, errno.EEXIST)
        if attributes.cont or attributes.clear:
            raise self._errors.error(HistErrorCode.TRIGGER_ENOENT_CLEAR, None, errno.ENOENT)
        if first is not None:
            made.use(first.table, first.definition)
        else:
            made.use(self._table(made), made.definition)
        if made.definition.uses_time:
            self._set_clock(attributes.clock)
        self._triggers.add(made)

    def _set_clock(self, name: str) -> None:
        try:
            self._instance.set_clock(name)
        except OSError:
            raise self._errors.error(HistErrorCode.SET_CLOCK_FAIL, name) from None

    def _table(self, made: HistTrigger) -> Histogram:
        definition = made.definition
        if self._event.group != SYNTHETIC and PerThreadHistogram.supports(definition):
            return PerThreadHistogram(definition, self._instance)
        resolver = ActionResolver(
            self._event,
            self._instance,
            self._registry,
            self._scope,
            self._errors,
            definition.keys,
            definition.attributes.time_unit,
            self._define_on,
            made.needs,
        )
        return SharedHistogram(definition, resolver.resolve(definition.actions), self._instance)

    def _define_on(self, event: EventFile, text: str) -> None:
        _run_on(event, text, remove=False, errors=self._errors)


@once
def register_hist_command() -> None:
    """Register the trigger command `hist`."""
    COMMANDS["hist"] = hist_command
