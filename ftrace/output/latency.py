"""latency-format: its header, and the beginning of a line. As print_trace_header() and trace_print_lat_context()."""

from __future__ import annotations

import os
from typing import NamedTuple

from ftrace.output.durations import mark
from ftrace.ring_buffer.reader import Record

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
