"""A log of calls in order, for tests that check which functions were called, with which arguments and results.

Calls are recorded natively (fprobe.calls.capture) and converted to objects when they are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fprobe.attachment import Attachment, attach
from fprobe.calls.capture import CallCapture, Event
from fprobe.registration import functions_of
from fprobe.report.nesting import Nesting
from ftrace.core.handlers.registers import regs_get_kernel_argument, regs_return_value
from ftrace.core.sites.locations import Location
from ftrace.hit.x86_64.pt_regs import pt_regs
from sandbox.abi.convention import ARGUMENT_REGISTERS, REGISTERS, Place, argument_places, result_place
from sandbox.abi.signatures import Integer, Pointer, Signature, Type

ENTRY, EXIT = "entry", "exit"
_MARKS = {ENTRY: "> ", EXIT: "< "}
_PT_REGS: Any = pt_regs
_IN_REGISTERS = len(ARGUMENT_REGISTERS)


@dataclass(frozen=True)
class LoggedCall:
    """One entry or return. `regs`: a copy of the registers. `depth`: the number of logged calls around it in its thread."""

    kind: str
    function: str
    regs: Any
    ret_ip: int
    depth: int
    thread: int
    signature: Signature | None = None

    def __str__(self) -> str:
        return _MARKS[self.kind] + self.function

    @property
    def text(self) -> str:
        """The call with its arguments or result, as far as they are in general registers and their types are known."""
        if self.signature is None:
            return str(self)
        if self.kind == ENTRY:
            return f"{self}({', '.join(_arguments(self.signature, self.regs))})"
        result = _value(self.signature.returns, result_place(self.signature), self.regs)
        return f"{self} = {result}" if result else str(self)

    def argument(self, n: int) -> int:
        """The n-th (from 0) of an entry's first six integer or pointer arguments. Raises IndexError for another n."""
        if not 0 <= n < _IN_REGISTERS:
            raise IndexError(f"argument {n} is not in a register; n must be between 0 and {_IN_REGISTERS - 1}")
        return int(regs_get_kernel_argument(self.regs, n))

    @property
    def result(self) -> int:
        """The function's result, as an unsigned word. For exits only."""
        return int(regs_return_value(self.regs))


def _arguments(signature: Signature, regs: Any) -> Iterator[str]:
    for parameter, place in argument_places(signature)[0]:
        value = None if parameter.copied else _value(parameter.type, place, regs)
        if value is None:
            yield "..."
            return
        yield f"{parameter.name}={value}" if parameter.name else value


def _value(kind: Type, place: Place | None, regs: Any) -> str | None:
    """The text of a value of that type; None if it is not in one general register."""
    if place is None or place.indirect or len(place.pieces) > 1 or place.pieces[0][1] >= REGISTERS:
        return None
    word = int.from_bytes(place.gather(bytes(regs)), "little")
    if isinstance(kind, Pointer):
        return hex(word) if word else "NULL"
    if not isinstance(kind, Integer):
        return None
    word &= (1 << kind.bits) - 1
    negative = kind.signed is not False and kind.bits > 1 and word >> kind.bits - 1
    return str(word - (1 << kind.bits) if negative else word)


class CallLog:
    """Logs the entries and returns of functions while tracing is on. Made by `log_calls`.

    Each thread has 8 MiB, and a call takes about 200 bytes of it. Events that do not fit are counted in `lost`.
    """

    def __init__(self, target: str | Sequence[str] | Sequence[int], exclude: str | None = None, **options: Any) -> None:
        self.capture = CallCapture(patience=0)
        self.probe: Attachment[Any] = attach(target, action=self.capture, exclude=exclude, **options)
        self._events: list[LoggedCall] = []
        self._nesting: Nesting[Event] = Nesting()
        self._locations: dict[int, Location] = {}
        self._functions: dict[int, tuple[str, Signature | None]] = {}

    def attach(self) -> CallLog:
        """Attach the probe. Raises OSError as `fprobe.attach` does."""
        self.probe.attach()
        self._locations = {location.ip: location for location in functions_of(self.probe.fp).each()}
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
        return "".join(f"{'  ' * event.depth}{event.text}\n" for event in self.events)

    def _depth(self, event: Event) -> int:
        """The number of logged calls around an entry or a return."""
        for call, _ in self._nesting.steps([event]):
            if event in (call.entry, call.leave):
                return call.depth
        return len(self._nesting.stacks[event.thread])

    def _logged(self, event: Event) -> LoggedCall:
        regs = _PT_REGS.ctypes.from_buffer_copy(event.images[0])
        depth = self._depth(event)
        if event.ip not in self._functions:
            self._functions[event.ip] = _function_at(self._locations.get(event.ip), event.ip)
        name, signature = self._functions[event.ip]
        kind = ENTRY if event.is_entry else EXIT
        return LoggedCall(kind, name, regs, event.caller, depth, event.thread, signature)


def _function_at(location: Location | None, entry_ip: int) -> tuple[str, Signature | None]:
    """The name of the function at a location, and its signature if the source gives it."""
    if location is None:
        return hex(entry_ip), None
    try:
        module = location.block.module
        return location.name, module[location.name].signature if module is not None else None
    except (LookupError, ValueError):
        return location.name, None


def log_calls(target: str | Sequence[str] | Sequence[int], exclude: str | None = None, **options: Any) -> CallLog:
    """Attach a log of calls. `options`: as for `fprobe.attach`, whose OSErrors it raises."""
    return CallLog(target, exclude, **options).attach()
