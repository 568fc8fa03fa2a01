"""The trace array of the top level: its ring buffer and its switch. struct trace_array in kernel/trace/trace.h."""

from __future__ import annotations

from functools import cache

from ftrace.files.tracing_on import switch_address, tracing_is_on, tracing_off, tracing_on
from ftrace.output.options import TraceOptions
from ftrace.ring_buffer.buffer import Buffer
from sandbox.process.cached import cached_property


class PipeClaims:
    """Which slots an open trace_pipe has; None stands for all of them. open_pipe_on_cpu() of kernel/trace/trace.c."""

    def __init__(self) -> None:
        self._slots: set[int | None] = set()

    def __bool__(self) -> bool:
        return bool(self._slots)

    def claim(self, slot: int | None) -> bool:
        """Take a slot, or all. False: somebody has it, or one of them."""
        if None in self._slots or slot in self._slots or (slot is None and self._slots):
            return False
        self._slots.add(slot)
        return True

    def release(self, slot: int | None) -> None:
        """Give back what was claimed."""
        self._slots.remove(slot)


class TraceArray:
    """A ring buffer and what belongs to it. `name`: of its directory under instances/, empty for the top level."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.options = TraceOptions(self._option_changed)
        self.current_tracer = "nop"
        self.pipes = PipeClaims()
        self.buffer_percent = 50
        """How full a buffer is to be, in percent, before waiting readers are woken: kept for programs that set it."""
        self.is_expanded = False
        """Whether something was to be recorded, or the size was set: what buffer_size_kb shows depends on it."""

    def __repr__(self) -> str:
        return f"<TraceArray {self.name or 'top level'}>"

    @cached_property
    def buffer(self) -> Buffer:
        """What events record into, made when it is first asked for."""
        return Buffer(self.name, overwrite=self.options["overwrite"])

    def _option_changed(self, name: str, on: bool) -> None:
        if name == "overwrite":
            self.buffer.overwrite = on

    def empty(self) -> None:
        """Empty the buffer and the snapshot."""
        self.buffer.clear_snapshot()
        self.buffer.clear()

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
