"""A probe that keeps what it sees, in order: for tests that assert on who was called, with what, and what came back."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fprobe.attachment import Attachment, attach
from ftrace.files.tracing_on import tracing_is_on
from ftrace.handlers.registers import regs_get_kernel_argument, regs_return_value
from ftrace.tracer import tracer
from ftrace.unwind.stacktrace import is_rethook_trampoline
from sandbox.abi.signatures import Integer, Pointer, Signature, Type

ENTRY, EXIT = "entry", "exit"
_MARKS = {ENTRY: "> ", EXIT: "< "}


@dataclass(frozen=True)
class Event:
    """One entry or return. `regs`: a copy of the registers at that moment; `depth`: recorded calls around it, in its thread."""

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
        """The n-th integer or pointer argument, from 0, of the six in registers; of an entry."""
        if not 0 <= n < 6:
            raise IndexError(f"argument {n} is not in a register: there are 0 to 5")
        return int(regs_get_kernel_argument(self.regs, n))

    @property
    def result(self) -> int:
        """What the function returned, as an unsigned word; of an exit."""
        return int(regs_return_value(self.regs))


def _arguments(signature: Signature, regs: Any) -> Iterator[str]:
    for n, parameter in enumerate(signature.parameters):
        plain = n < 6 and parameter.copied is None
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


class Recorder:
    """Attached to functions, it keeps an Event for each of their entries and returns, while tracing is on. Made by `record`."""

    def __init__(self, target: str | Sequence[str] | Sequence[int], exclude: str | None = None, **options: Any) -> None:
        self.events: list[Event] = []
        """What happened, oldest first; of several threads in the order in which their handlers ran."""
        self._thread = threading.local()
        self._functions: dict[int, tuple[str, Signature | None]] = {}
        handlers = {"entry": self._entry, "exit": self._exit}
        given: dict[str, Any] = {**handlers, **options}
        self.probe: Attachment[Any] = attach(target, exclude=exclude, **given)

    @property
    def calls(self) -> list[str]:
        """The names of the functions that were entered, in order."""
        return [event.function for event in self.events if event.kind == ENTRY]

    @property
    def order(self) -> list[str]:
        """Entries and returns: `["> outer", "> inner", "< inner", "< outer"]`."""
        return [str(event) for event in self.events]

    def of(self, function: str, kind: str = ENTRY) -> list[Event]:
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

    @property
    def _frames(self) -> list[int]:
        """Where the return slots of this thread's recorded calls are, outermost first."""
        frames: list[int] | None = getattr(self._thread, "frames", None)
        if frames is None:
            frames = self._thread.frames = []
        return frames

    def _entry(self, fp: Any, entry_ip: int, ret_ip: int, regs: Any, data: Any) -> None:
        frames = self._frames
        while frames and frames[-1] < regs.sp:  # calls whose return was not seen
            frames.pop()
        if (
            frames and frames[-1] == regs.sp and not is_rethook_trampoline(ret_ip)
        ):  # another one, unless this is a tail call
            frames.pop()
        self._note(ENTRY, entry_ip, ret_ip, regs, len(frames))
        frames.append(regs.sp)

    def _exit(self, fp: Any, entry_ip: int, ret_ip: int, regs: Any, data: Any) -> None:
        frames, slot = self._frames, regs.sp - 8
        while frames and frames[-1] < slot:
            frames.pop()
        if frames and frames[-1] == slot:
            frames.pop()
        self._note(EXIT, entry_ip, ret_ip, regs, len(frames))

    def _note(self, kind: str, entry_ip: int, ret_ip: int, regs: Any, depth: int) -> None:
        if not tracing_is_on():
            return
        if entry_ip not in self._functions:
            self._functions[entry_ip] = _function_at(entry_ip)
        name, signature = self._functions[entry_ip]
        kept = type(regs).from_buffer_copy(regs)
        self.events.append(Event(kind, name, kept, ret_ip, depth, threading.get_ident(), signature))


def _function_at(entry_ip: int) -> tuple[str, Signature | None]:
    """The name of the function at a location, and what its source says of it."""
    location = tracer().table.location(entry_ip)
    if location is None:
        return hex(entry_ip), None
    try:
        module = location.block.module
        return location.name, module[location.name].signature if module is not None else None
    except (LookupError, ValueError):
        return location.name, None


def record(target: str | Sequence[str] | Sequence[int], exclude: str | None = None, **options: Any) -> Recorder:
    """Attach a recorder; `options` are those of `fprobe.attach`. Raises OSError as that does."""
    recorder = Recorder(target, exclude, **options)
    recorder.probe.attach()
    return recorder
