"""Recording text for trace_marker. Native."""

from __future__ import annotations

from ftrace.ring_buffer.records import RingBuffer
from ftrace.ring_buffer.writer import write
from sandbox.native import bool_, native, ptr, u8, u64

PRINT = 5
"""The type of print records (TRACE_PRINT)."""
TRACING_MARK_WRITE = "tracing_mark_write"


@native(name=TRACING_MARK_WRITE)
def tracing_mark_write(buffer: ptr[RingBuffer], data: ptr[u8], size: u64) -> bool_:
    """Record what a program wrote. Its own address is in the record, as that of the function that made it."""
    return write(buffer, PRINT, data, size)


FUNCTIONS = (tracing_mark_write,)
