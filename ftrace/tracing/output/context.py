"""The beginning of a line: thread, slot and time; with latency-format also the delay to the next record.

As trace_print_context(), trace_print_lat_context() and trace_find_mark() of kernel/trace/trace_output.c.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

from ftrace.ring_buffer.reader import Record

_MARKS = ((1_000_000_000, "$"), (100_000_000, "@"), (10_000_000, "*"), (1_000_000, "#"), (100_000, "!"), (10_000, "+"))
"""The mark of a duration: the first whose nanoseconds it exceeds."""
_DIGITS, _WIDTH = 7, 8


def mark(duration: int) -> str:
    """The mark of a duration in nanoseconds: trace_find_mark()."""
    return next((letter for limit, letter in _MARKS if duration > limit), " ")


def duration_text(duration: int) -> str:
    """A duration in nanoseconds as microseconds with at most seven digits: trace_print_graph_duration()."""
    microseconds, rest = divmod(duration, 1000)
    text = str(microseconds)
    if len(text) < _DIGITS:
        text += "." + f"{rest:03}"[: _DIGITS - len(text)]
    return text + " us " + " " * (_WIDTH - len(text))


NO_FLAGS = "....."
"""Flags of interrupts, rescheduling, contexts and preemption, which threads in user space do not have."""
_LINE = "-" * 68
_COLUMNS = """\
#                    _------=> CPU#            
#                   / _-----=> irqs-off/BH-disabled
#                  | / _----=> need-resched    
#                  || / _---=> hardirq/softirq 
#                  ||| / _--=> preempt-depth   
#                  |||| / _-=> migrate-disable 
#                  ||||| /     delay           
#  cmd     pid     |||||| time  |   caller     
#     \\   /        ||||||  \\    |    /       
"""  # noqa: W291


def latency_header(tracer: str, entries: int, written: int, cpus: int, verbose: bool) -> str:
    """The header; '' if there are no records."""
    if not entries:
        return ""
    lines = (
        f" {tracer} latency trace v1.1.5 on {os.uname().release}",
        f" {_LINE}",
        f" latency: 0 us, #{entries}/{written}, CPU#0 | (M:desktop VP:0, KP:0, SP:0 HP:0 #P:{cpus})",
        "    -----------------",
        "    | task: -0 (uid:0 nice:0 policy:0 rt_prio:0)",
        "    -----------------",
        "",
    )
    return "".join(f"#{line}\n" for line in lines) + ("" if verbose else _COLUMNS)


def latency_context(record: Record, following: Record | None, comm: str, shown: LatencyTime, index: int | None) -> str:
    """`COMM-PID CPU FLAGS TIME: `. `index`: the number of the record with the option verbose (other columns); else None."""
    pid = record.common.pid
    next_stamp = following.stamp if following is not None else record.stamp
    if index is None:
        return f"{comm[:8]:>8}-{pid:<7} {record.slot:3}{NO_FLAGS}{shown.text(record.stamp, next_stamp)}"
    front = f"{comm:>16} {pid:7} {record.slot:3} 0 {0:08x} {index:08x} "
    return front + shown.verbose_text(record.stamp, next_stamp)


class LatencyTime(NamedTuple):
    """The format of times: lat_print_timestamp(). `start`: when the buffer was emptied, by its clock."""

    start: int
    in_ns: bool

    def text(self, stamp: int, following: int) -> str:
        """The time since the start, and the mark for the time to the next record."""
        since = stamp - self.start
        if not self.in_ns:
            return f" {since:4}: "
        return f" {_microseconds(since):4}us{mark(_microseconds(following - stamp) * 1000)}: "

    def verbose_text(self, stamp: int, following: int) -> str:
        """The text with the option verbose, which includes the full time stamp in hexadecimal, in microseconds if it can be."""
        since, until = stamp - self.start, following - stamp
        if not self.in_ns:
            return f"[{stamp:016x}] {since} (+{until}): "
        return f"[{_microseconds(stamp):08x}] {_milliseconds(since)} (+{_milliseconds(until)}): "


def _microseconds(nanoseconds: int) -> int:
    return (nanoseconds + 500) // 1000


def _milliseconds(nanoseconds: int) -> str:
    whole, rest = divmod(_microseconds(nanoseconds), 1000)
    return f"{whole}.{rest:03}ms"


_BINARY = struct.Struct("<IIQ")


def timestamp(stamp: int, in_ns: bool, width: int = 5) -> str:
    """Seconds and microseconds, rounded; for a clock that does not count nanoseconds, the plain number."""
    if not in_ns:
        return f"{stamp:12}"
    seconds, microseconds = divmod((stamp + 500) // 1000, 1_000_000)
    return f"{seconds:{width}}.{microseconds:06}"


def front(comm: str, tid: int, slot: int, tgid: str, flags: str) -> str:
    """`COMM-PID [CPU] FLAGS `. `comm`: the thread's name; `tgid`: the column of its process, if there is one."""
    return f"{comm:>16}-{tid:<7} {tgid}[{slot:03}] {flags} "


def raw_context(record: Record) -> str:
    """The beginning of a line with the option raw."""
    return f"{record.common.pid} {record.slot} {record.stamp} "


def hex_context(record: Record) -> str:
    """The beginning of a line with the option hex."""
    return f"{record.common.pid & 0xFFFF_FFFF:08x} {record.slot:08x} {record.stamp:016x} "


def binary_context(record: Record) -> bytes:
    """The beginning of a line with the option bin."""
    return _BINARY.pack(record.common.pid & 0xFFFF_FFFF, record.slot, record.stamp)
