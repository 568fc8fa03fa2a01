"""The records of function_graph as nested calls. As kernel/trace/trace_functions_graph.c."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ftrace.events.builtin import FUNCTION, GRAPH_ENTRY, GRAPH_EXIT, KERNEL_STACK
from ftrace.output.graph_columns import RULE, Columns, cpu, proc
from ftrace.output.lines import LineFormat, lost_text
from ftrace.output.options import TraceOptions
from ftrace.output.symbols import plain
from ftrace.ring_buffer.reader import Record

_ENTRY, _EXIT = struct.Struct("<8xQi"), struct.Struct("<8xQQiIQQ")
_INDENT = 2
_NO_COMMENTS = (FUNCTION.id, KERNEL_STACK.id)
"""Types that are shown as in other tracers."""
_MAX_ERRNO = 4095


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

    def __init__(self, options: TraceOptions, plain_lines: LineFormat, slots: dict[int, Slot], count: int) -> None:
        self._options, self._plain, self._slots = options, plain_lines, slots
        self._columns = Columns(options, count)
        self._count = count
        self._shows_result = options["funcgraph-retval"]
        self._hexadecimal = options["funcgraph-retval-hex"]
        self.looks_ahead = True
        """Whether the text of a record depends on the next one."""

    def lines(self, records: Sequence[Record]) -> Iterator[str]:
        """The text of each record. An entry that is directly followed by its return is one line with it."""
        following = _following(records)
        done: set[int] = set()
        for index, record in enumerate(records):
            if index not in done:
                after = following[index]
                leaf = _return_of_leaf(record, records[after]) if after is not None else None
                if leaf is not None and after is not None:
                    done.add(after)
                yield lost_text(record) + (self._as_elsewhere(records, index) or self._shown(record, leaf))

    def _as_elsewhere(self, records: Sequence[Record], index: int) -> str:
        """The line of a record that is neither a call nor a comment; '' for others."""
        if records[index].common.type not in _NO_COMMENTS:
            return ""
        following = records[index + 1] if index + 1 < len(records) else None
        return self._plain.text(records[index], following, index)

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
