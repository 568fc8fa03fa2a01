"""latency-format: its header, and what stands in front of an event. print_trace_header() and trace_print_lat_context()."""

from __future__ import annotations

import os

from ftrace.output.graph_columns import mark
from ftrace.ring_buffer.reader import Record

_FLAGS = "....."
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
    """The lines above the records; none if there are none."""
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


def latency_context(record: Record, following: Record | None, comm: str, start: int | None) -> str:
    """`COMM-PID CPU FLAGS TIME: `. `start`: when the buffer was emptied, in nanoseconds; None: the clock has other units."""
    front = f"{comm[:8]:>8}-{record.common.pid:<7} {record.slot:3}{_FLAGS}"
    if start is None:
        return f"{front} {record.stamp:4}: "
    until_next = following.stamp - record.stamp if following is not None else 0
    microseconds = (record.stamp - start + 500) // 1000
    return f"{front} {microseconds:4}us{mark((until_next + 500) // 1000 * 1000)}: "
