"""A log of calls, in order: for tests that assert on who was called, with what, and what came back.

The calls are recorded natively (fprobe.call_capture) and become objects when they are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fprobe.attachment import Attachment, attach
from fprobe.call_capture import CallCapture, Event
from fprobe.registration import functions_of
from ftrace.handlers.registers import regs_get_kernel_argument, regs_return_value
from ftrace.sites.locations import Location
from ftrace.unwind.stacktrace import is_rethook_trampoline
from ftrace.x86_64.pt_regs import pt_regs
from sandbox.abi.signatures import Integer, Pointer, Signature, Type

ENTRY, EXIT = "entry", "exit"
_MARKS = {ENTRY: "> ", EXIT: "< "}
_PT_REGS: Any = pt_regs
_IN_REGISTERS = 6


@dataclass(frozen=True)
class LoggedCall:
    """One entry or return. `regs`: a copy of the registers at that moment; `depth`: logged calls around it, in its thread."""

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
        """With arguments or result, as far as they are integers and pointers in registers and their types are known."""
        if self.signature is None:
            return str(self)
        if self.kind == ENTRY:
            return f"{self}({', '.join(_arguments(self.signature, self.regs))})"
        result = _value(self.signature.returns, self.result)
        return f"{self} = {result}" if result else str(self)

    def argument(self, n: int) -> int:
        """The n-th integer or pointer argument of an entry, from 0, of the six in registers. Raises IndexError."""
        if not 0 <= n < _IN_REGISTERS:
            raise IndexError(f"argument {n} is not in a register: there are 0 to {_IN_REGISTERS - 1}")
        return int(regs_get_kernel_argument(self.regs, n))

    @property
    def result(self) -> int:
        """What the function returned, as an unsigned word; of an exit."""
        return int(regs_return_value(self.regs))


def _arguments(signature: Signature, regs: Any) -> Iterator[str]:
    for n, parameter in enumerate(signature.parameters):
        plain = n < _IN_REGISTERS and parameter.copied is None
        value = _value(parameter.type, regs_get_kernel_argument(regs, n)) if plain else None
        if value is None:
            yield "..."
            return
        yield f"{parameter.name}={value}" if parameter.name else value


def _value(kind: Type, word: int) -> str | None:
    """A value of that type in a register, or None if it would not be in one of those."""
    if isinstance(kind, Pointer):
        return hex(word) if word else "NULL"
    if not isinstance(kind, Integer) or kind.bits > 64:
        return None
    word &= (1 << kind.bits) - 1
    negative = kind.signed is not False and kind.bits > 1 and word >> kind.bits - 1
    return str(word - (1 << kind.bits) if negative else word)


class CallLog:
    """Attached to functions, it keeps their entries and returns while tracing is on. Made by `log_calls`.

    A thread's calls take 200 bytes each of 8 MiB; what does not fit any more is counted in `lost`.
    """

    def __init__(self, target: str | Sequence[str] | Sequence[int], exclude: str | None = None, **options: Any) -> None:
        self.capture = CallCapture(patience=0)
        self.probe: Attachment[Any] = attach(target, action=self.capture, exclude=exclude, **options)
        self._events: list[LoggedCall] = []
        self._frames: dict[int, list[int]] = {}
        self._locations: dict[int, Location] = {}
        self._functions: dict[int, tuple[str, Signature | None]] = {}

    def attach(self) -> CallLog:
        """Attach the probe. Raises OSError as `fprobe.attach` does."""
        self.probe.attach()
        self._locations = {location.ip: location for location in functions_of(self.probe.fp).locations()}
        return self

    @property
    def events(self) -> list[LoggedCall]:
        """What happened, oldest first."""
        while taken := self.capture.take():
            self._events += map(self._logged, taken)
        return self._events

    @property
    def lost(self) -> int:
        """Entries and returns for which there was no room."""
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
        """What one function returned each time, as unsigned words."""
        return [event.result for event in self.of(function, EXIT)]

    def clear(self) -> None:
        """Forget what happened so far."""
        self.events.clear()

    def tree(self) -> str:
        """The calls as an indented text, with arguments and results."""
        return "".join(f"{'  ' * event.depth}{event.text}\n" for event in self.events)

    def _logged(self, event: Event) -> LoggedCall:
        regs = _PT_REGS.ctypes.from_buffer_copy(event.images[0])
        frames = self._frames.setdefault(event.thread, [])
        depth = _entered(frames, regs.sp, event.caller) if event.is_entry else _left(frames, regs.sp - 8)
        if event.ip not in self._functions:
            self._functions[event.ip] = _function_at(self._locations.get(event.ip), event.ip)
        name, signature = self._functions[event.ip]
        kind = ENTRY if event.is_entry else EXIT
        return LoggedCall(kind, name, regs, event.caller, depth, event.thread, signature)


def _entered(frames: list[int], slot: int, caller: int) -> int:
    """Note a call by its return slot, among those of its thread, outermost first; its depth."""
    while frames and frames[-1] < slot:  # calls whose return was not seen
        frames.pop()
    if frames and frames[-1] == slot and not is_rethook_trampoline(caller):  # another one, unless this is a tail call
        frames.pop()
    frames.append(slot)
    return len(frames) - 1


def _left(frames: list[int], slot: int) -> int:
    while frames and frames[-1] < slot:
        frames.pop()
    if frames and frames[-1] == slot:
        frames.pop()
    return len(frames)


def _function_at(location: Location | None, entry_ip: int) -> tuple[str, Signature | None]:
    """The name of the function at a location, and what its source says of it."""
    if location is None:
        return hex(entry_ip), None
    try:
        module = location.block.module
        return location.name, module[location.name].signature if module is not None else None
    except (LookupError, ValueError):
        return location.name, None


def log_calls(target: str | Sequence[str] | Sequence[int], exclude: str | None = None, **options: Any) -> CallLog:
    """Attach a log; `options` are those of `fprobe.attach`. Raises OSError as that does."""
    return CallLog(target, exclude, **options).attach()
