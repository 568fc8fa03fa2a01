"""The recorded calls of a thread that have not returned, outermost first.

Each has its `place` on the thread's shadow stack (ftrace.hit.nodes), which tells better than a stack pointer what is inside what:
calls that an exception or a longjmp has ended lose their place, and calls on different stacks have different ones.
"""

from __future__ import annotations

from typing import Protocol, TypeVar


class Placed(Protocol):
    """A call."""

    @property
    def ip(self) -> int: ...
    @property
    def place(self) -> int: ...


Call = TypeVar("Call", bound=Placed)


def drop_ended(stack: list[Call], place: int) -> list[Call]:
    """A call is entered at `place`: remove those that have been there or above, and return them, innermost first."""
    dropped = []
    while stack and stack[-1].place >= place:
        dropped.append(stack.pop())
    return dropped


def returning(stack: list[Call], ip: int, place: int, is_newest: bool) -> tuple[list[Call], Call | None]:
    """A call of the function at `ip` returns: remove it. Returns the calls inside it that have ended without, and the call.

    `is_newest`: no later call of the thread is in progress, on another stack.
    """
    at = next((at for at in reversed(range(len(stack))) if (stack[at].ip, stack[at].place) == (ip, place)), -1)
    if at < 0:
        return [], None
    dropped = drop_ended(stack, place + 1) if is_newest else []
    return dropped, stack.pop(at)
