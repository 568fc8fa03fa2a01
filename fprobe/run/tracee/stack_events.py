"""Stacks of calls by the values of their arguments: probe events with a trigger that counts the stack of each hit."""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Iterator, Sequence
from typing import Any

from fprobe.calls.stacks import Stacks, stack_image
from fprobe.recorded_events import explained
from fprobe.run import session
from fprobe.run.session import Settings
from fprobe.run.tracee.value_events import ValueEvents
from fprobe.run.values import GROUP
from fprobe.tracefs import tracefs
from ftrace.hit.stacks.collecting import StackEvent
from ftrace.tracing.events.event_mutex import events_locked
from ftrace.tracing.events.filters.fields import EventField, Kind, find_field
from ftrace.tracing.events.hist.programs import NUMBERS
from ftrace.tracing.events.probe_event import Probe
from ftrace.tracing.events.triggers.interfaces import NativeCall
from ftrace.tracing.events.triggers.trigger import Condition, Trigger
from ftrace.tracing.events.triggers.trigger_file import EventTriggers
from ftrace.tracing.instances.trace_array import global_trace


class StackTrigger(Trigger):
    """Counts the stack of each hit, and adds up a field, or the product of two. It has no text for a trigger file."""

    needs_record = True
    identity = head = "fprobe-stacks"

    def __init__(self, stacks: Stacks, factors: Sequence[EventField], condition: Condition | None) -> None:
        super().__init__(condition)
        native: Any = StackEvent.ctypes(table=stacks.address, factors=len(factors))
        for field, number in zip(factors, ("", "2"), strict=False):
            setattr(native, f"source{number}", NUMBERS[field.size, field.signed])
            setattr(native, f"start{number}", field.offset)
        self._call(NativeCall(stack_image().address("stack_trigger"), ctypes.addressof(native), (native, stacks)))


class StackEvents(ValueEvents):
    """Events whose hits are counted by their stacks."""

    def __init__(self, address: str, settings: Settings, stacks: Stacks) -> None:
        super().__init__(address, settings.stack_values)
        self._filter, self._sum, self._stacks = settings.stack_filter, settings.stack_sum, stacks
        self._defined: list[tuple[str, EventTriggers, StackTrigger]] = []

    def _count(self, number: int, probe: Probe) -> None:
        instance = global_trace()
        triggers = probe.event.file_in(instance).triggers
        with events_locked():
            trigger = StackTrigger(self._stacks, [*self._summed(triggers)], self._condition(triggers))
            triggers.add(trigger)
        self._defined.append((f"{GROUP}/s{number}", triggers, trigger))
        if self._filter:
            session.note(self._address, where=self._filter)

    def _summed(self, triggers: EventTriggers) -> Iterator[EventField]:
        """The field to add up, or the two of a product. Raises OSError for one that is no number."""
        for name in self._sum.split("*") if self._sum else ():
            found = find_field(triggers.event.fields, name)
            if found is None:
                raise OSError(errno.EINVAL, f"--sum {self._sum}: the event has no field {name}")
            field, kind = found
            if kind is not Kind.NUMBER or "[" in field.type or (field.size, field.signed) not in NUMBERS:
                raise OSError(
                    errno.EINVAL, f"--sum {self._sum}: {name} is {field.type}, and only numbers can be added up"
                )
            yield field

    def _condition(self, triggers: EventTriggers) -> Condition | None:
        """The filter. Raises OSError with a caret under the error."""
        made: list[Condition] = []
        if self._filter:
            explained(lambda: made.append(Condition(self._filter, triggers.event, triggers.instance)), self._filter)
        return made[0] if made else None

    def remove(self) -> None:
        """Remove the events. What they counted stays in the launcher's memory. Raises OSError."""
        self._waiting.clear()
        for name, triggers, trigger in self._defined:
            with events_locked():
                triggers.remove(trigger)
            tracefs.write("dynamic_events", f"-:{name}", append=True)
        self._defined.clear()
