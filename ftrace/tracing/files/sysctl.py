"""kernel.ftrace_enabled and kernel.stack_tracer_enabled."""

from __future__ import annotations

from ftrace.core.tracer import tracer
from ftrace.tracing.tracers.stack import stack_tracer


def ftrace_enabled() -> int:
    """1, or 0 while all sites are NOPs although operations are registered."""
    return int(tracer().switched_on)


def set_ftrace_enabled(value: int) -> None:
    """Turn every site into a NOP, or patch them again.

    Raises OSError: EBUSY for 0 while a PERMANENT ops is registered, ENODEV if ftrace is dead.
    """
    tracer().switch(bool(value))


def stack_tracer_enabled() -> int:
    """0 while the stack tracer is off; otherwise the number that switched it on: stack_trace_sysctl()."""
    return stack_tracer.enabled


def set_stack_tracer_enabled(value: int) -> None:
    """Switch the stack tracer on, or off by 0: stack_trace_sysctl(). The deepest stack is kept.

    Raises OSError if the functions of stack_trace_filter cannot be probed.
    """
    stack_tracer.enabled = value
