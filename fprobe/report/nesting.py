"""From entries and returns of functions to nested calls.

Each has a `place` on its thread's shadow stack (ftrace.hit.nodes), which tells better than a stack pointer what is inside what:
calls that an exception or a longjmp has ended lose their place, and calls on different stacks have different ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar


class CallEvent(Protocol):
    """An entry or a return. `is_newest`: at a return, no later call of the thread is in progress, on another stack."""

    @property
    def time(self) -> int: ...
    @property
    def thread(self) -> int: ...
    @property
    def ip(self) -> int: ...
    @property
    def place(self) -> int: ...
    @property
    def is_entry(self) -> bool: ...
    @property
    def is_newest(self) -> bool: ...


E = TypeVar("E", bound=CallEvent)


class Call(Generic[E]):
    """A call. `leave`: its return, None until it returns, or if that was not recorded; `depth`: number of recorded callers."""

    def __init__(self, entry: E, depth: int) -> None:
        self.entry, self.depth = entry, depth
        self.leave: E | None = None
        self.ip, self.thread = entry.ip, entry.thread

    @property
    def duration(self) -> int:
        """The time from entry to return, in the events' unit; 0 without a return."""
        return self.leave.time - self.entry.time if self.leave is not None else 0


class Nesting(Generic[E]):
    """The calls of each thread that have not returned, outermost first."""

    def __init__(self) -> None:
        self.stacks: dict[int, list[Call[E]]] = {}

    def steps(self, events: Iterable[E]) -> Iterator[tuple[Call[E], bool]]:
        """The steps of these events, in order: (call, True) at its beginning and (call, False) at its end.

        A call that ends without its return, since that was not recorded, ends with its caller's or the next one at its place.
        """
        for event in events:
            stack = self.stacks.setdefault(event.thread, [])
            if event.is_entry:
                yield from _drop(stack, event.place)
                stack.append(Call(event, len(stack)))
                yield stack[-1], True
            else:
                yield from _leave(stack, event)

    def unfinished(self) -> list[Call[E]]:
        """The calls that have not returned, outermost first, thread by thread."""
        return [call for stack in self.stacks.values() for call in stack]


def _drop(stack: list[Call[E]], place: int) -> Iterator[tuple[Call[E], bool]]:
    """End the calls at `place` or above, innermost first: their returns were not recorded."""
    while stack and stack[-1].entry.place >= place:
        yield stack.pop(), False


def _leave(stack: list[Call[E]], event: E) -> Iterator[tuple[Call[E], bool]]:
    at = next((call for call in reversed(stack) if (call.ip, call.entry.place) == (event.ip, event.place)), None)
    if at is None:
        return
    if event.is_newest:
        yield from _drop(stack, event.place + 1)
    stack.remove(at)
    at.leave = event
    yield at, False
