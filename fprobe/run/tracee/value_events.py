"""Probe events about the values of arguments. Each is defined, and begins to count, as soon as its function is loaded."""

from __future__ import annotations

import errno
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from fprobe.events.lines import missing_argument
from fprobe.recorded_events import define
from fprobe.run import session
from fprobe.run.tracee.defining import Definition, extend
from fprobe.run.tracee.patterns import Pattern, plain_values
from ftrace.core.filters.image_functions import ImageFunction
from ftrace.tracing.events.probe_event import Probe

_MOST_CHECKED, _MOST_TOLD = 100, 5
"""Functions of a pattern whose prototypes are looked at, and of how many it is said that they have no such argument."""
_UNTYPED = re.compile(r"(\$(?:arg\d+|retval))(?=\s|$)")


class ValueDefinition(Definition):
    """A line f whose arguments may be given by name, or that some of its functions have not.

    Then each function that matches and has them has a probe of its own for the event.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.is_by_function = False
        self.missing: dict[ImageFunction, str] = {}
        """The functions that had not one of the arguments when they were looked at, and why."""
        self.left_out: dict[ImageFunction, str] = {}
        """Why functions that match are not counted."""

    def define(self) -> list[Probe]:
        """See `Definition`."""
        if not self.is_by_function:
            try:
                return super().define()
            except OSError:
                if not self.can_be_by_function:
                    raise
        self.is_by_function = True
        self._new_functions()
        self._probes = self._define_each(self.functions(), self.missing)
        return self._probes

    def missing_in(self, functions: Sequence[ImageFunction]) -> dict[ImageFunction, str]:
        """Those of the functions that have not one of the arguments, and why. It takes milliseconds for each function."""
        arguments = self.text.split()[2:]
        return {each: why for each in functions if (why := missing_argument(each.pattern, arguments))}

    @property
    def can_be_by_function(self) -> bool:
        """Whether there are several functions, and not too many."""
        return 1 < len(self.functions()) <= _MOST_CHECKED

    def extend(self) -> tuple[list[ImageFunction], str]:
        """See `Definition`."""
        if not self.is_by_function:
            return super().extend()
        new = self._new_functions()
        self._probes += self._define_each(new, self.missing_in(new)) if new else []
        return new, ""

    def _define_each(self, functions: Sequence[ImageFunction], missing: Mapping[ImageFunction, str]) -> list[Probe]:
        """Probe these functions. Raises OSError as for the last of them if none has the arguments."""
        head, _, arguments = self.text.split(None, 2)
        arguments = _UNTYPED.sub(r"\1:u64", arguments)
        made: list[Probe] = []
        for each in functions:
            try:
                if each in missing:
                    raise OSError(errno.EINVAL, missing[each])
                made += define(f"{head} {each.pattern} {arguments}")
            except OSError as error:
                refused = error
                self.left_out[each] = str(error.strerror).splitlines()[-1].strip()
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
                self._check(each, functions)
                self._count(number, each.define()[0])
            except OSError as error:
                session.note(self._address, error=error.strerror or str(error))
                continue
            for remark in _remarks(each.left_out):
                session.note(self._address, remark=remark)
            counted = [function for function in functions if function not in each.left_out]
            session.note(self._address, pattern=each.text, functions=plain_values(counted))
            session.note(self._address, attached=len(counted))
            self._made.append(each)
        extend(self._made, self._address)

    def _check(self, definition: ValueDefinition, functions: Sequence[ImageFunction]) -> None:
        """Raise OSError if no function of an event has one of its arguments; those that have not are left out, or named."""
        missing = definition.missing = definition.missing_in(functions[:_MOST_CHECKED])
        told = list(missing.items())[:_MOST_TOLD]
        if missing and len(missing) == len(functions):
            raise OSError(errno.EINVAL, "{}: {}".format(*told[0]))
        definition.is_by_function = bool(missing) and definition.can_be_by_function
        for function, why in told if not definition.is_by_function else ():
            session.note(self._address, remark=f"what is counted of {function} has no meaning: {why}")

    @abstractmethod
    def _count(self, number: int, probe: Probe) -> None:
        """Have an event count that has been defined. Raises OSError."""


def _remarks(left_out: Mapping[ImageFunction, str]) -> list[str]:
    told = [f"not counted: {function}: {why}" for function, why in left_out.items()]
    more = len(told) - _MOST_TOLD
    return told[:_MOST_TOLD] + [f"not counted: {more} more functions"] * (more > 0)
