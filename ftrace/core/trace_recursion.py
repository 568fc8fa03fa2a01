"""The recursion lock of callbacks, for Python callbacks that use it."""

from __future__ import annotations

from ftrace.core.runtime import runtime


def ftrace_test_recursion_trylock() -> int:
    """Take the callbacks' recursion lock in this thread and context: the bit for the unlock, or -1."""
    return runtime().image.call("recursion_trylock")


def ftrace_test_recursion_unlock(bit: int) -> None:
    """Give back what `ftrace_test_recursion_trylock` returned."""
    runtime().image.call("recursion_unlock", bit)
