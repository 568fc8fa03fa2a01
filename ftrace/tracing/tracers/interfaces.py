"""The interfaces of tracers. struct tracer in kernel/trace/trace.h."""

from __future__ import annotations

import errno
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Protocol

from ftrace.core.sites.locations import OpsHash
from ftrace.ring_buffer.buffer import Buffer
from ftrace.tracing.tracers.thread_filters import PidLists


class TracerFlags:
    """The options of a tracer, which all trace arrays share: struct tracer_flags. `refused` cannot be set."""

    def __init__(self, defaults: Mapping[str, bool], refused: str = "") -> None:
        self._on = dict(defaults)
        self._refused = refused

    def __getitem__(self, name: str) -> bool:
        return self._on[name]

    def __contains__(self, name: str) -> bool:
        return name in self._on

    def __iter__(self) -> Iterator[str]:
        return iter(self._on)

    def set(self, name: str, on: bool) -> None:
        """Set an option. Raises OSError(EINVAL) for `refused`."""
        if name == self._refused:
            raise OSError(errno.EINVAL, f"the option {name!r} is always refused; it exists to test errors")
        self._on[name] = on


class Tracing(Protocol):
    """A tracer that is running in one trace array."""

    @abstractmethod
    def update(self) -> None:
        """Apply changes of the options, the thread filter and the clock. Raises OSError if it cannot."""

    @abstractmethod
    def stop(self) -> None:
        """Stop recording. When this returns, no other thread is recording."""


class TracedArray(Protocol):
    """A trace array as tracers use it: ftrace.tracing.instances.trace_array.TraceArray."""

    @property
    def buffer(self) -> Buffer: ...

    @property
    def switch(self) -> int: ...

    @property
    def function_hash(self) -> OpsHash: ...

    @property
    def function_tasks(self) -> PidLists: ...

    def stop_tracing(self) -> None: ...


class Tracer:
    """A tracer. This base class records nothing: it is nop. `flags`: its own options."""

    name = "nop"

    def __init__(self, flags: TracerFlags) -> None:
        self.flags = flags

    def start(self, array: TracedArray) -> Tracing | None:
        """Start recording into a trace array. Raises OSError."""
        return None


nop = Tracer(TracerFlags({"test_nop_accept": False, "test_nop_refuse": False}, refused="test_nop_refuse"))
