"""Calls from events: matches returns with entries, and finds depth and duration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from fprobe.calls.capture import Event, Images
from sandbox.abi import convention as x86_64


@dataclass
class Call:
    """A call. Times are in nanoseconds; `left` and `result` are None until it returns.

    `lost`: it has returned, but its return was not recorded.
    """

    ip: int
    thread: int
    caller: int
    depth: int
    slot: int
    entered: int
    arguments: Images
    left: int | None = None
    result: Images | None = None
    lost: bool = False

    @property
    def duration(self) -> int:
        """Nanoseconds from entry to return; 0 while it has not returned."""
        return self.left - self.entered if self.left is not None else 0


@dataclass
class Calls:
    """The calls of each thread, as steps: (call, True) at its beginning and (call, False) at its end."""

    stacks: dict[int, list[Call]] = field(default_factory=dict)

    def steps(self, events: Iterable[Event]) -> Iterator[tuple[Call, bool]]:
        """The steps of these events, in order."""
        for event in events:
            stack = self.stacks.setdefault(event.thread, [])
            if event.is_entry:
                yield from self._enter(event, stack)
            else:
                yield from self._leave(event, stack)

    def _enter(self, event: Event, stack: list[Call]) -> Iterator[tuple[Call, bool]]:
        slot = _stack_pointer(event)
        # A caller's return slot is at a higher address; a call with the same slot has made a tail call.
        while stack and stack[-1].slot < slot:
            yield _lost(stack.pop()), False
        call = Call(event.ip, event.thread, event.caller, len(stack), slot, event.time, event.images)
        stack.append(call)
        yield call, True

    def _leave(self, event: Event, stack: list[Call]) -> Iterator[tuple[Call, bool]]:
        slot = _stack_pointer(event) - 8
        position = next((at for at in reversed(range(len(stack))) if _is_of(stack[at], event, slot)), -1)
        if position < 0:
            return
        while len(stack) > position + 1:
            yield _lost(stack.pop()), False
        call = stack.pop()
        call.left, call.result = event.time, event.images
        yield call, False

    def unfinished(self) -> list[Call]:
        """The calls that have not returned, outermost first, thread by thread."""
        return [call for stack in self.stacks.values() for call in stack]


def _is_of(call: Call, event: Event, slot: int) -> bool:
    return call.ip == event.ip and call.slot == slot


def _lost(call: Call) -> Call:
    call.lost = True
    return call


def _stack_pointer(event: Event) -> int:
    return int.from_bytes(event.images[0][x86_64.STACK_POINTER : x86_64.STACK_POINTER + 8], "little")
