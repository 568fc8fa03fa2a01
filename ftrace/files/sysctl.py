"""kernel.ftrace_enabled."""

from __future__ import annotations

from ftrace.tracer import tracer


def ftrace_enabled() -> int:
    """1, or 0 while all sites are NOPs although operations are registered."""
    return int(tracer().switched_on)


def set_ftrace_enabled(value: int) -> None:
    """Turn every site into a NOP, or patch them again.

    Raises OSError: EBUSY for 0 while a PERMANENT ops is registered, ENODEV if ftrace is dead.
    """
    tracer().switch(bool(value))
