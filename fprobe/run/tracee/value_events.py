"""Probe events about the values of arguments. Each is defined, and begins to count, as soon as its function is loaded."""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Sequence

from fprobe.events.lines import missing_argument
from fprobe.recorded_events import define
from fprobe.run import session
from fprobe.run.tracee.defining import Definition, extend
from fprobe.run.tracee.patterns import Pattern, plain_values
from ftrace.core.filters.image_functions import ImageFunction
from ftrace.tracing.events.probe_event import Probe

_MOST_CHECKED, _MOST_TOLD = 100, 5
"""Functions of a pattern whose prototypes are looked at, and of how many it is said that they have no such argument."""


class ValueDefinition(Definition):
    """A line f whose arguments may be given by name: then each function that matches has a probe of its own for the event."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._is_by_name = False
        self.left_out: list[str] = []
        """A sentence for each function that has no such argument."""

    def define(self) -> list[Probe]:
        """See `Definition`."""
        try:
            return super().define()
        except OSError:
            if not 1 < len(self.functions()) <= _MOST_CHECKED:
                raise
        self._is_by_name = True
        self._probes = self._define_each(self.functions())
        return self._probes

    def extend(self) -> tuple[list[ImageFunction], str]:
        """See `Definition`."""
        if not self._is_by_name:
            return super().extend()
        new = self._new_functions()
        self._probes += self._define_each(new) if new else []
        return new, ""

    def _define_each(self, functions: Sequence[ImageFunction]) -> list[Probe]:
        """Probe these functions. Raises OSError as for the last of them if none has the arguments."""
        head, _, arguments = self.text.split(None, 2)
        made: list[Probe] = []
        for each in functions:
            try:
                made += define(f"{head} {each.pattern} {arguments}")
            except OSError as error:
                refused = error
                self.left_out.append(f"not counted: {each}: {str(error.strerror).splitlines()[-1].strip()}")
        if not made:
            raise refused
        return made


class ValueEvents(ABC):
    """The events of a run: those that wait for their functions, and those that count. `definitions`: lines that define them."""

    def __init__(self, address: str, definitions: Sequence[str]) -> None:
        self._address = address
        self._waiting = [(number, ValueDefinition(text)) for number, text in enumerate(definitions)]
        self._made: list[Definition] = []

    @property
    def patterns(self) -> list[Pattern]:
        """The patterns that still wait for their functions."""
        return [each.pattern for _, each in self._waiting if each.pattern is not None]

    def define_loaded(self) -> None:
        """Define the events whose functions are loaded now, have them count, and report them to the launcher."""
        for number, each in [waiting for waiting in self._waiting if waiting[1].can_be_defined]:
            self._waiting.remove((number, each))
            functions = each.functions()
            try:
                self._check(each.text, functions)
                self._count(number, each.define()[0])
            except OSError as error:
                session.note(self._address, error=error.strerror or str(error))
                continue
            more = len(each.left_out) - _MOST_TOLD
            for remark in each.left_out[:_MOST_TOLD] + [f"not counted: {more} more functions"] * (more > 0):
                session.note(self._address, remark=remark)
            session.note(self._address, pattern=each.text, functions=plain_values(functions))
            session.note(self._address, attached=len(functions))
            self._made.append(each)
        extend(self._made, self._address)

    def _check(self, text: str, functions: Sequence[ImageFunction]) -> None:
        """Raise OSError if no function of an event has one of its arguments, and say which have not."""
        arguments = text.split()[2:]
        checked = functions[:_MOST_CHECKED]
        missing = [(each, why) for each in checked if (why := missing_argument(each.pattern, arguments))]
        if missing and len(missing) == len(functions):
            raise OSError(errno.EINVAL, f"{missing[0][0]}: {missing[0][1]}")
        for function, why in missing[:_MOST_TOLD]:
            session.note(self._address, remark=f"what is counted of {function} has no meaning: {why}")

    @abstractmethod
    def _count(self, number: int, probe: Probe) -> None:
        """Have an event count that has been defined. Raises OSError."""
