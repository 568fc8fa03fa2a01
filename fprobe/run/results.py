"""What was counted, read from the file of counts and from the journal, process by process."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fprobe.run import session
from fprobe.run.names import Names
from sandbox.threads.counters import used

CELL, BUCKETS = 2048, 248
"""Of `ftrace.hit.call_table`, whose import is too slow for a reader."""
_CELL = struct.Struct(f"<{8 + BUCKETS}Q")
assert _CELL.size == CELL


@dataclass
class Calls:
    """Of one function, of one caller or thread if calls are told apart by that. Times are in ticks."""

    ip: int
    by: int = 0
    hits: int = 0
    missed: int = 0
    returns: int = 0
    total: int = 0
    least: int = 0
    most: int = 0
    buckets: list[int] = field(default_factory=lambda: [0] * BUCKETS)

    def add(self, other: Calls) -> None:
        """Take what another thread has counted, too."""
        if other.returns:
            self.least = min(self.least, other.least) if self.returns else other.least
        self.most = max(self.most, other.most)
        self.hits += other.hits
        self.missed += other.missed
        self.returns += other.returns
        self.total += other.total
        self.buckets = [a + b for a, b in zip(self.buckets, other.buckets, strict=True)]

    @property
    def average(self) -> float:
        """Ticks of a call that has returned; 0 if none has."""
        return self.total / self.returns if self.returns else 0.0

    def percentile(self, share: float) -> float:
        """The ticks that this share of the calls did not exceed, to an eighth; 0 if none has returned."""
        wanted, seen = share * sum(self.buckets), 0
        for bucket, count in enumerate(self.buckets):
            seen += count
            if count and seen >= wanted:
                low, high = limits(bucket)
                return min(max((low + high) / 2, self.least), self.most)
        return 0.0


def limits(bucket: int) -> tuple[int, int]:
    """Where a bucket begins and ends, in ticks, as `ftrace.hit.call_table.bucket_of` fills them."""
    if bucket < 4:
        return bucket, bucket + 1
    bits, quarter = divmod(bucket, 4)
    return (4 + quarter) << (bits - 1), (5 + quarter) << (bits - 1)


class StackCount(NamedTuple):
    """Calls that were made from one stack, and their ticks."""

    calls: int
    ticks: int


@dataclass
class Process:
    """A process of the program. `calls`: by function and what they are told apart by."""

    pid: int
    command: list[str] = field(default_factory=list)
    spoke: bool = False
    """Whether it has told that it is a Python with probes."""
    parent: int | None = None
    names: Names = field(default_factory=Names)
    attached: int = 0
    meant: dict[str, set[int]] = field(default_factory=dict)
    """The functions that each pattern means."""
    waiting: list[tuple[str, str]] = field(default_factory=list)
    """Patterns of which nothing was there at the start, and why."""
    skipped: list[tuple[str, str]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    parts: list[int] = field(default_factory=list)
    """The numbers of its parts of the file of counts."""
    remarks: list[str] = field(default_factory=list)
    calls: dict[tuple[int, int], Calls] = field(default_factory=dict)
    stacks: dict[int, list[int | str]] = field(default_factory=dict)
    """By number, outermost frame first: of Python as text, of native code as an address."""
    stack_counts: dict[int, StackCount] = field(default_factory=dict)
    maps: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Where the maps of native handlers lie: offset and size."""
    formats: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Of the probe events that were defined: group and `format`, by number."""
    dropped: int = 0
    """Calls that the table had no place for."""

    def take(self, entry: dict[str, Any]) -> None:
        """An entry of the journal."""
        if "argv" in entry:  # after an exec, other libraries are at other addresses: the names are those of the last
            self.command, self.names, self.spoke = entry["argv"], Names(), True
        self.names.take_libraries(entry.get("libraries", []))
        self.names.take_functions(functions := entry.get("functions", []))
        if functions:
            self.meant.setdefault(entry["pattern"], set()).update(address for address, _, _ in functions)
        self.waiting += [(pattern, reason) for pattern, reason in entry.get("waiting", ())]
        self.attached += entry.get("attached", 0)
        self.skipped += [(name, reason) for name, reason in entry.get("skipped", ())]
        self.maps |= entry.get("maps", {})
        if "event" in entry:
            self.formats[entry["event"]] = (entry["group"], entry["format"])
        if "stack" in entry:
            self.stacks[entry["stack"]] = entry["frames"]
        self.remarks += [entry["remark"]] if "remark" in entry else []
        self.errors += [entry[key] for key in ("error", "not_covered") if key in entry]

    def inherit(self, parent: Process) -> None:
        """It is the child of a fork."""
        self.parent = parent.pid
        self.names.inherit(parent.names)
        self.stacks = parent.stacks | self.stacks
        self.maps = parent.maps
        self.formats = parent.formats | self.formats
        self.meant = {pattern: set(functions) for pattern, functions in parent.meant.items()} | self.meant
        self.command = self.command or parent.command

    @property
    def has_anything(self) -> bool:
        """Whether there is anything to report of it."""
        return bool(self.calls or self.stack_counts or self.errors or self.skipped)

    def means(self, patterns: Iterable[str], ip: int) -> bool:
        """Whether one of these patterns means the function."""
        return any(ip in self.meant.get(pattern, ()) for pattern in patterns)

    def functions(self) -> list[Calls]:
        """The calls of each function, whoever made them."""
        found: dict[int, Calls] = {}
        for each in self.calls.values():
            found.setdefault(each.ip, Calls(each.ip)).add(each)
        return list(found.values())


@dataclass
class Results:
    """What is known of a run. `started`: process number -> command, of what the program's processes have started."""

    processes: list[Process]
    started: dict[int, list[str]]
    uncounted: int
    """Processes that came when no part of the file was left."""

    @property
    def not_covered(self) -> dict[int, list[str]]:
        """What was started and has not said that it is covered."""
        known = {process.pid for process in self.processes if process.spoke}
        return {pid: command for pid, command in self.started.items() if pid not in known}


def read(counts: int, journal: int) -> Results:
    """Everything that is known now. The program may still be running."""
    entries = list(session.entries(journal))
    processes: dict[int, Process] = {}
    for entry in entries:
        processes.setdefault(entry["pid"], Process(entry["pid"])).take(entry)
    for entry in entries:
        if "forked_by" in entry and not (child := processes[entry["pid"]]).command and entry["forked_by"] in processes:
            child.inherit(processes[entry["forked_by"]])
    of_part: dict[int, Process] = {}
    for header in session.parts(counts):
        process = of_part[header.number] = processes.setdefault(header.pid, Process(header.pid))
        process.parts.append(header.number)
        if header.parent in of_part and not process.command:
            process.inherit(of_part[header.parent])
        _count(process, cells(counts, header.number))
        process.stack_counts |= dict(stack_counts(counts, header.number))
    started = {entry["started"]: entry["command"] for entry in entries if "started" in entry}
    return Results(list(processes.values()), started, session.processes_not_counted(counts))


def _count(process: Process, found: Iterable[Calls]) -> None:
    for calls in found:
        if calls.ip:
            process.calls.setdefault((calls.ip, calls.by), Calls(calls.ip, calls.by)).add(calls)
        else:
            process.dropped += calls.hits


def stack_counts(counts: int, number: int) -> Iterator[tuple[int, StackCount]]:
    """By the stacks' numbers."""
    start = session.HEADER + number * session.PART + session.STACKS_AT
    for low, high in used(counts, start, start + session.STACKS * 16):
        for index, pair in enumerate(struct.iter_unpack("<2Q", os.pread(counts, high - low, low))):
            if pair[0]:
                yield (low - start) // 16 + index, StackCount(*pair)


def cells(counts: int, number: int) -> Iterator[Calls]:
    """The cells of a part that are in use. The first of a row has no `ip`; its `hits` are the calls that found no place."""
    start = session.HEADER + number * session.PART + session.ROWS_AT
    for low, high in used(counts, start, start + session.ROWS * session.STRIDE):
        for at in range(low, high, CELL):
            if (at - start) % session.STRIDE >= session.EVENTS_AT:
                continue
            ip, by, hits, missed, returns, total, least, most, *buckets = _CELL.unpack(os.pread(counts, CELL, at))
            if (at - start) % session.STRIDE == 0:
                yield Calls(0, hits=by)
            elif ip and hits:
                yield Calls(ip, by, hits, missed, returns, total, least, most, buckets)
