"""A log of calls in order, for tests that check which functions were called, with which arguments and results.

Calls are recorded natively (fprobe.calls.capture) and converted to objects when they are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fprobe.attachment import Attachment, attach
from fprobe.calls.call_values import CallValues, Functions
from fprobe.calls.capture import CallCapture
from fprobe.calls.records import Event, Values
from fprobe.prototypes.described import Described, of_signature
from fprobe.registration import functions_of
from fprobe.report.nesting import Nesting
from fprobe.report.tree import indentation
from ftrace.core.sites.locations import Location
from sandbox.abi.convention import ARGUMENT_REGISTERS

ENTRY, EXIT = "entry", "exit"
_MARKS = {ENTRY: "> ", EXIT: "< "}
_IN_REGISTERS = len(ARGUMENT_REGISTERS)


@dataclass(frozen=True)
class LoggedCall:
    """One entry or return. `values`: what was in registers and on the stack. `depth`: the number of logged calls around it in its
    thread. `text`: the call with its arguments or its result, as far as they are known.
    """

    kind: str
    function: str
    values: Values
    ret_ip: int
    depth: int
    thread: int
    text: str

    def __str__(self) -> str:
        return _MARKS[self.kind] + self.function

    def argument(self, n: int) -> int:
        """The n-th (from 0) of an entry's first six integer or pointer arguments. Raises IndexError for another n."""
        if not 0 <= n < _IN_REGISTERS:
            raise IndexError(f"argument {n} is not in a register; n must be between 0 and {_IN_REGISTERS - 1}")
        return self.values.words[n]

    @property
    def result(self) -> int:
        """The function's result, as an unsigned word. For exits only."""
        return self.values.words[0]


class _LoggedFunctions(Functions):
    """The functions of a log. `locations`: by entry address."""

    def __init__(self, locations: dict[int, Location]) -> None:
        self._locations = locations

    def name(self, address: int) -> str:
        location = self._locations.get(address)
        return location.name if location is not None else hex(address)

    def described(self, address: int) -> Described | None:
        """The function with its arguments; None if no source gives its signature."""
        location = self._locations.get(address)
        module = location.block.module if location is not None else None
        try:
            return of_signature(module[self.name(address)].signature) if module is not None else None
        except (LookupError, ValueError):
            return None


class CallLog:
    """Logs the entries and returns of functions while tracing is on. Made by `log_calls`.

    Each thread has 8 MiB, and a call takes about 500 bytes of it. Events that do not fit are counted in `lost`.
    """

    def __init__(self, target: str | Sequence[str] | Sequence[int], exclude: str | None = None, **options: Any) -> None:
        self.capture = CallCapture(strings=False, patience=0)
        self.probe: Attachment[Any] = attach(target, action=self.capture, exclude=exclude, **options)
        self._events: list[LoggedCall] = []
        self._nesting: Nesting[Event] = Nesting()

    def attach(self) -> CallLog:
        """Attach the probe. Raises OSError as `fprobe.attach` does."""
        self.probe.attach()
        self._functions = _LoggedFunctions({location.ip: location for location in functions_of(self.probe.fp).each()})
        self._values = CallValues(self._functions)
        return self

    @property
    def events(self) -> list[LoggedCall]:
        """The logged entries and returns, oldest first."""
        while taken := self.capture.take():
            self._events += map(self._logged, taken)
        return self._events

    @property
    def lost(self) -> int:
        """Entries and returns that did not fit."""
        return self.capture.lost

    @property
    def calls(self) -> list[str]:
        """The names of the functions that were entered, in order."""
        return [event.function for event in self.events if event.kind == ENTRY]

    @property
    def order(self) -> list[str]:
        """Entries and returns: `["> outer", "> inner", "< inner", "< outer"]`."""
        return [str(event) for event in self.events]

    def of(self, function: str, kind: str = ENTRY) -> list[LoggedCall]:
        """The entries (or exits) of one function."""
        return [event for event in self.events if event.function == function and event.kind == kind]

    def results(self, function: str) -> list[int]:
        """The results of one function's calls, as unsigned words."""
        return [event.result for event in self.of(function, EXIT)]

    def clear(self) -> None:
        """Discard all events so far."""
        self.events.clear()

    def tree(self) -> str:
        """The calls as an indented text, with arguments and results."""
        return "".join(f"{indentation(event.depth)}{event.text}\n" for event in self.events)

    def _logged(self, event: Event) -> LoggedCall:
        assert event.values is not None
        depth, caller = self._around(event)
        name = self._functions.name(event.ip)
        if event.is_entry:
            text = f"> {name}({self._values.arguments(event.ip, event.values)})"
            return LoggedCall(ENTRY, name, event.values, event.value, depth, event.thread, text)
        result, _ = self._values.result(event.ip, event.value, event.values)
        text = f"< {name} = {result}" if result else f"< {name}"
        return LoggedCall(EXIT, name, event.values, caller, depth, event.thread, text)

    def _around(self, event: Event) -> tuple[int, int]:
        """The number of logged calls around an entry or a return, and where the call returns to; 0: its entry was not logged."""
        for call, _ in self._nesting.steps([event]):
            if event in (call.entry, call.leave):
                return call.depth, call.entry.value
        return len(self._nesting.stacks[event.thread]), 0


def log_calls(target: str | Sequence[str] | Sequence[int], exclude: str | None = None, **options: Any) -> CallLog:
    """Attach a log of calls. `options`: as for `fprobe.attach`, whose OSErrors it raises."""
    return CallLog(target, exclude, **options).attach()
