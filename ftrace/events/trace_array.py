"""The trace array of the top level: its ring buffer and its switch. struct trace_array in kernel/trace/trace.h."""

from __future__ import annotations

from functools import cache

from ftrace.files.tracing_on import switch_address, tracing_is_on, tracing_off, tracing_on
from ftrace.ring_buffer.buffer import Buffer
from sandbox.process.cached import cached_property


class TraceArray:
    """A ring buffer and what belongs to it. `name`: of its directory under instances/, empty for the top level."""

    def __init__(self, name: str = "") -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<TraceArray {self.name or 'top level'}>"

    @cached_property
    def buffer(self) -> Buffer:
        """What events record into, made when it is first asked for."""
        return Buffer(self.name)

    @property
    def switch(self) -> int:
        """Address of a word of 64 bits: 1 while events are recorded, else 0."""
        return switch_address()

    @property
    def tracing_on(self) -> bool:
        """Whether events are recorded: the file tracing_on, which commands and triggers change too."""
        return tracing_is_on()

    @tracing_on.setter
    def tracing_on(self, on: bool) -> None:
        (tracing_on if on else tracing_off)()


@cache
def global_trace() -> TraceArray:
    """The top level's."""
    return TraceArray()
