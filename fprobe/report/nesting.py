"""From entries and returns of functions to nested calls.

Each has a `place` on its thread's shadow stack (ftrace.hit.nodes), which tells better than a stack pointer what is inside what:
calls that an exception or a longjmp has ended lose their place, and calls on different stacks have different ones. An entry also
has the place of the call around it: the newest call in progress may be suspended on another stack.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar


class CallEvent(Protocol):
    """An entry or a return. `is_newest`: at a return, no later call of the thread is in progress, on another stack.

    `outer`: at an entry, the place of the call around it; of places between, no call is recorded that is.
    """

    @property
    def time(self) -> int: ...
    @property
    def thread(self) -> int: ...
    @property
    def ip(self) -> int: ...
    @property
    def place(self) -> int: ...
    @property
    def outer(self) -> int: ...
    @property
    def is_entry(self) -> bool: ...
    @property
    def is_newest(self) -> bool: ...


E = TypeVar("E", bound=CallEvent)


class Call(Generic[E]):
    """A call. `leave`: its return, None until it returns, or if that was not recorded; `depth`: number of recorded callers.

    `caller`: the innermost of them; `ended`: the time at which it is known to have ended, None until then.
    """

    def __init__(self, entry: E, caller: Call[E] | None) -> None:
        self.entry, self.caller = entry, caller
        self.depth: int = caller.depth + 1 if caller is not None else 0
        self.leave: E | None = None
        self.ended: int | None = None
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
                yield from _drop(stack, event.place, event.time)
                around = (call for call in reversed(stack) if call.entry.place <= event.outer)
                stack.append(Call(event, next(around, None)))
                yield stack[-1], True
            else:
                yield from _leave(stack, event)

    def unfinished(self) -> list[Call[E]]:
        """The calls that have not returned, outermost first, thread by thread."""
        return [call for stack in self.stacks.values() for call in stack]


def _drop(stack: list[Call[E]], place: int, time: int) -> Iterator[tuple[Call[E], bool]]:
    """End the calls at `place` or above, innermost first: their returns were not recorded."""
    while stack and stack[-1].entry.place >= place:
        stack[-1].ended = time
        yield stack.pop(), False


def _leave(stack: list[Call[E]], event: E) -> Iterator[tuple[Call[E], bool]]:
    at = next((call for call in reversed(stack) if (call.ip, call.entry.place) == (event.ip, event.place)), None)
    if at is None:
        return
    if event.is_newest:
        yield from _drop(stack, event.place + 1, event.time)
    stack.remove(at)
    at.leave, at.ended = event, event.time
    yield at, False


def tracks_of(steps: Sequence[tuple[Call[E], bool]]) -> dict[Call[E], int]:
    """The number of a track for each call, from 0 on in each thread: calls on one are inside each other, or follow each other.

    A coroutine's call does not fit into the call that has resumed it if that returns first. `steps`: all steps of the calls.
    """
    ends = {call: at for at, (call, begins) in enumerate(steps) if not begins}
    tracks: dict[int, list[list[Call[E]]]] = {}
    found: dict[Call[E], int] = {}
    for call, begins in steps:
        known = tracks.setdefault(call.thread, [])
        if begins:
            end = ends.get(call, len(steps))
            fits = (
                number
                for number, open_calls in enumerate(known)
                if not open_calls or (open_calls[-1] is call.caller and end <= ends.get(open_calls[-1], len(steps)))
            )
            found[call] = next(fits, len(known))
            if found[call] == len(known):
                known.append([])
            known[found[call]].append(call)
        else:
            known[found[call]].remove(call)
    return found
