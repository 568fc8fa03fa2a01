"""Probe events about the values of arguments. Each is defined, and begins to count, as soon as its function is loaded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from fprobe.recorded_events import define
from fprobe.run import session
from fprobe.run.tracee.defining import Definition
from fprobe.run.tracee.patterns import Pattern, plain_values
from ftrace.tracing.events.probe_event import Probe


class ValueEvents(ABC):
    """The events of a run: those that wait for their functions, and those that count. `definitions`: lines that define them."""

    def __init__(self, address: str, definitions: Sequence[str]) -> None:
        self._address = address
        self._waiting = [(number, Definition(text)) for number, text in enumerate(definitions)]

    @property
    def patterns(self) -> list[Pattern]:
        """The patterns that still wait for their functions."""
        return [each.pattern for _, each in self._waiting if each.pattern is not None]

    def define_loaded(self) -> None:
        """Define the events whose functions are loaded now, have them count, and report them to the launcher."""
        for number, each in [waiting for waiting in self._waiting if waiting[1].can_be_defined]:
            self._waiting.remove((number, each))
            try:
                self._count(number, define(each.text)[0])
            except OSError as error:
                session.note(self._address, error=error.strerror or str(error))
                continue
            functions = plain_values(each.pattern.found()) if each.pattern is not None else []
            session.note(self._address, pattern=each.text, functions=functions)
            session.note(self._address, attached=len(functions))

    @abstractmethod
    def _count(self, number: int, probe: Probe) -> None:
        """Have an event count that has been defined. Raises OSError."""
