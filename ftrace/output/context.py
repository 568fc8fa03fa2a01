"""The beginning of a line: thread, slot and time. As trace_print_context() of kernel/trace/trace_output.c."""

from __future__ import annotations

import struct

from ftrace.output.latency import NO_FLAGS
from ftrace.output.options import TraceOptions
from ftrace.ring_buffer.reader import Record

_BINARY = struct.Struct("<IIQ")


def timestamp(stamp: int, in_ns: bool, width: int = 5) -> str:
    """Seconds and microseconds, rounded; for a clock that does not count nanoseconds, the plain number."""
    if not in_ns:
        return f"{stamp:12}"
    seconds, microseconds = divmod((stamp + 500) // 1000, 1_000_000)
    return f"{seconds:{width}}.{microseconds:06}"


def context(record: Record, comm: str, tgid: str, options: TraceOptions, in_ns: bool) -> str:
    """`COMM-PID [CPU] FLAGS TIME: `. `comm`: the thread's name; `tgid`: the column of its process, if there is one."""
    tid = record.common.pid
    flags = NO_FLAGS if options["irq-info"] else ""
    when = timestamp(record.stamp, in_ns)
    return f"{comm:>16}-{tid:<7} {tgid}[{record.slot:03}] {flags} {when}: "


def raw_context(record: Record) -> str:
    """The beginning of a line with the option raw."""
    return f"{record.common.pid} {record.slot} {record.stamp} "


def hex_context(record: Record) -> str:
    """The beginning of a line with the option hex."""
    return f"{record.common.pid & 0xFFFF_FFFF:08x} {record.slot:08x} {record.stamp:016x} "


def binary_context(record: Record) -> bytes:
    """The beginning of a line with the option bin."""
    return _BINARY.pack(record.common.pid & 0xFFFF_FFFF, record.slot, record.stamp)
