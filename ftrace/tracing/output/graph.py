"""The records of function_graph as nested calls, with their columns and header. As kernel/trace/trace_functions_graph.c."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from ftrace.ring_buffer.reader import Record
from ftrace.tracing.events.builtin import FUNCTION, GRAPH_ENTRY, GRAPH_EXIT, KERNEL_STACK
from ftrace.tracing.instances.options import Options
from ftrace.tracing.output.context import NO_FLAGS, duration_text, mark, timestamp
from ftrace.tracing.output.lines import LineFormat, lost_text
from ftrace.tracing.symbols import plain

_PROC_WIDTH = 14
_COMM_WIDTH = 7
_TIME_WIDTH, _CPU_WIDTH, _TASK_WIDTH = 16, 4, 17
"""Widths of the columns before the flags."""
_FLAGS = (
    "  _-----=> irqs-off        ",
    " / _----=> need-resched    ",
    "| / _---=> hardirq/softirq ",
    "|| / _--=> preempt-depth   ",
    "||| /                      ",
)
NO_DURATION = "              |  "
RULE = " ------------------------------------------\n"


def proc(comm: str, tid: int) -> str:
    """A thread's name and id, centred."""
    text = f"{comm[:_COMM_WIDTH]}-{tid}"
    spare = max(_PROC_WIDTH - len(text), 0)
    return " " * (spare // 2) + text + " " * (spare - spare // 2)


def cpu(slot: int, slots: int) -> str:
    """A slot's number, as wide as the highest of `slots`."""
    return f" {slot:{len(str(slots - 1))}}) "


class Columns:
    """The columns, as selected by the options. `slots`: the number of slots."""

    def __init__(self, options: Options, slots: int) -> None:
        self._slots = slots
        self._shown = options["context-info"]
        self._abstime, self._cpu = options["funcgraph-abstime"], options["funcgraph-cpu"]
        self._proc, self._duration = options["funcgraph-proc"], options["funcgraph-duration"]
        self._overhead = options["funcgraph-overhead"]
        self._latency = options["latency-format"]

    def prologue(self, stamp: int, slot: int, comm: str, tid: int) -> str:
        """The columns before the duration: print_graph_prologue()."""
        if not self._shown:
            return ""
        parts = [f"{_truncated(stamp)} |  "] if self._abstime else []
        parts += [cpu(slot, self._slots)] if self._cpu else []
        parts += [f"{proc(comm, tid)} | "] if self._proc else []
        parts += [f" {NO_FLAGS} | "] if self._latency else []
        return "".join(parts)

    def duration(self, nanoseconds: int | None) -> str:
        """The column of the duration; blank for None. As print_graph_duration()."""
        if not (self._shown and self._duration):
            return ""
        if nanoseconds is None:
            return NO_DURATION
        letter = mark(nanoseconds) if self._overhead else " "
        return f"{letter} {duration_text(nanoseconds)}|  "

    def header(self) -> str:
        """The two header lines; with latency-format also those for the flags: __print_graph_headers_flags()."""
        if not self._shown:
            return ""
        columns = (
            (self._abstime, "     TIME       ", "      |         "),
            (self._cpu, " CPU", " |  "),
            (self._proc, "  TASK/PID       ", "   |    |        "),
            (self._latency, "||||   ", "||||   "),
            (self._duration, "  DURATION   ", "   |   |      "),
            (True, "               FUNCTION CALLS", "               |   |   |   |"),
        )
        lines = zip(*((name, rule) for shown, name, rule in columns if shown), strict=True)
        return self._flags() + "".join(f"#{''.join(line)}\n" for line in lines)

    def _flags(self) -> str:
        """print_lat_header()."""
        if not self._latency:
            return ""
        indent = " " * (_TIME_WIDTH * self._abstime + _CPU_WIDTH * self._cpu + _TASK_WIDTH * self._proc)
        return "".join(f"#{indent}{line}\n" for line in _FLAGS)


def _truncated(stamp: int) -> str:
    """Seconds and whole microseconds."""
    return timestamp(stamp - stamp % 1000, True)


_ENTRY, _EXIT = struct.Struct("<8xQi"), struct.Struct("<8xQQiIQQ")
_INDENT = 2
_NO_COMMENTS = (FUNCTION.id, KERNEL_STACK.id)
"""Types that are shown as in other tracers."""
_MAX_ERRNO = 4095
_BATCH = 4096
"""Records that are looked at together, since the text of one depends on the next of its slot."""
_AHEAD = 64
"""How many of them at most wait for those that follow, where these may come late."""


class Return(NamedTuple):
    """A funcgraph_exit record."""

    func: int
    retval: int
    depth: int
    overrun: int
    calltime: int
    rettime: int

    @property
    def duration(self) -> int:
        """The duration in nanoseconds."""
        return self.rettime - self.calltime


@dataclass
class Slot:
    """The state that the next line of a slot depends on: struct fgraph_cpu_data."""

    pid: int | None = None
    depth: int = 0
    entered: dict[int, int] = field(default_factory=dict)
    """For each depth, the function whose entry was shown and whose return was not."""


class GraphFormat:
    """Formats records. `plain_lines`: formats those that are not calls. `slots`: state of each slot, kept by the caller."""

    def __init__(self, options: Options, plain_lines: LineFormat, slots: dict[int, Slot], count: int) -> None:
        self._options, self._plain, self._slots = options, plain_lines, slots
        self._columns = Columns(options, count)
        self._count = count
        self._shows_result = options["funcgraph-retval"]
        self._hexadecimal = options["funcgraph-retval-hex"]
        self._leaf_returns: dict[int, Record] = {}
        """The next record of a slot, if it was shown with the entry before it."""
        self.looks_ahead = True
        """Whether the text of a record depends on the next one."""

    def lines(self, records: Iterable[Record]) -> Iterator[str]:
        """The text of each record. An entry that is directly followed by its return is one line with it."""
        batch: list[Record] = []
        source, size, shown = iter(records), _BATCH, 0
        while taken := list(islice(source, size)):
            batch += taken
            ready = len(batch) - held_back(batch, len(batch))
            yield from self._lines(batch, ready, shown)
            shown += ready
            batch, size = batch[ready:], max(_BATCH, len(batch) - ready)
        yield from self._lines(batch, len(batch), shown)

    def _lines(self, records: Sequence[Record], ready: int, before: int) -> Iterator[str]:
        """The text of the first `ready` records; `before`: the number of records shown before."""
        following = _following(records)
        for index, record in enumerate(records[:ready]):
            if self._leaf_returns.pop(record.slot, None) == record:
                continue
            after = following[index]
            leaf = _return_of_leaf(record, records[after]) if after is not None else None
            if leaf is not None and after is not None:
                self._leaf_returns[record.slot] = records[after]
            yield lost_text(record) + (self._as_elsewhere(records, index, before) or self._shown(record, leaf))

    def _as_elsewhere(self, records: Sequence[Record], index: int, before: int) -> str:
        """The line of a record that is neither a call nor a comment; '' for others."""
        if records[index].common.type not in _NO_COMMENTS:
            return ""
        following = records[index + 1] if index + 1 < len(records) else None
        return self._plain.text(records[index], following, before + index)

    def _shown(self, record: Record, leaf: Return | None) -> str:
        kind = record.common.type
        slot = self._slots.setdefault(record.slot, Slot())
        front = self._change_of_task(record, slot) + self._columns.prologue(
            record.stamp, record.slot, self._plain.comm(record.common.pid), record.common.pid
        )
        if kind == GRAPH_ENTRY.id:
            return front + self._entry(slot, record, leaf)
        if kind == GRAPH_EXIT.id:
            return front + self._return(slot, Return(*_EXIT.unpack_from(record.data)))
        return front + self._comment(slot, record)

    def _change_of_task(self, record: Record, slot: Slot) -> str:
        """A note that another thread uses the slot from now on: verif_pid()."""
        before, slot.pid = slot.pid, record.common.pid
        if before is None or before == slot.pid:
            return ""
        tasks = " => ".join(proc(self._plain.comm(tid), tid) for tid in (before, slot.pid))
        return f"{RULE}{cpu(record.slot, self._count)}{tasks}\n{RULE}\n"

    def _entry(self, slot: Slot, record: Record, leaf: Return | None) -> str:
        func, depth = _ENTRY.unpack_from(record.data)
        indent = " " * (depth * _INDENT)
        if leaf is None:
            slot.depth = depth
            slot.entered[depth] = func
            return f"{self._columns.duration(None)}{indent}{plain(func)}() {{\n"
        slot.depth = depth - 1
        slot.entered.pop(depth, None)
        result = f" /* {self._result(leaf)} */" if self._shows_result else ""
        return f"{self._columns.duration(leaf.duration)}{indent}{plain(func)}();{result}\n"

    def _return(self, slot: Slot, call: Return) -> str:
        slot.depth = call.depth - 1
        matched = slot.entered.pop(call.depth, None) == call.func
        indent = " " * (call.depth * _INDENT)
        text = f"{self._columns.duration(call.duration)}{indent}}}"
        if self._shows_result:
            text += f" /* {plain(call.func)} {self._result(call)} */"
        elif self._options["funcgraph-tail"] or not matched:
            text += f" /* {plain(call.func)} */"
        overrun = f" (Overruns: {call.overrun})\n" if self._options["funcgraph-overrun"] else ""
        return f"{text}\n{overrun}"

    def _result(self, call: Return) -> str:
        """The result; a value that looks like an error is shown as a signed number. As print_graph_retval()."""
        value = call.retval
        if not self._hexadecimal and (number := _error(value)) is not None:
            return f"= {number}"
        return f"= {value:#x}" if value else "= 0x0"

    def _comment(self, slot: Slot, record: Record) -> str:
        indent = " " * ((slot.depth + 1) * _INDENT) if slot.depth > 0 else ""
        text = self._plain.event_text(record).removesuffix("\n")
        return f"{self._columns.duration(None)}{indent}/* {text} */\n"


def held_back(records: Sequence[Record], ahead: int = _AHEAD) -> int:
    """How many records at the end are better shown with those that follow: from an entry on whose return may be the next.

    At least the last one; `ahead`: how many at most, otherwise.
    """
    newest = {record.slot: index for index, record in enumerate(records)}
    entries = (index for index in newest.values() if records[index].common.type == GRAPH_ENTRY.id)
    first = min((index for index in entries if index >= len(records) - ahead), default=len(records) - 1)
    return len(records) - first


def _error(value: int) -> int | None:
    """The value as a negative errno, of 32 or 64 bits; None if it is not one."""
    signed = value - (1 << 32) if value >> 31 == 1 else value - (value >> 63 << 64)
    return signed if -_MAX_ERRNO <= signed < 0 else None


def _following(records: Sequence[Record]) -> list[int | None]:
    """For each record, the index of the next one of its slot."""
    found: list[int | None] = [None] * len(records)
    newest: dict[int, int] = {}
    for index, record in enumerate(records):
        if record.slot in newest:
            found[newest[record.slot]] = index
        newest[record.slot] = index
    return found


def _return_of_leaf(record: Record, following: Record) -> Return | None:
    """The return, if these records are the entry of a function and its return: get_return_for_leaf()."""
    kinds = (record.common.type, following.common.type)
    if kinds != (GRAPH_ENTRY.id, GRAPH_EXIT.id) or record.common.pid != following.common.pid:
        return None
    call = Return(*_EXIT.unpack_from(following.data))
    return call if call.func == _ENTRY.unpack_from(record.data)[0] else None
