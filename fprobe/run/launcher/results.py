"""The results of a run by process, read from the file of counts and the journal."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fprobe.calls.stack_memory import PythonPlace, StackCounts, StackMemory
from fprobe.report.buckets import BUCKETS
from fprobe.report.counts import Calls, calls_of
from fprobe.report.tables import group_text
from fprobe.run import session
from fprobe.run.launcher.names import Named, Names
from sandbox.threads.counters import used

CELL = 2048
"""As in `ftrace.hit.account`, which takes too long to import here."""
_THREAD = struct.Struct("<Q")
_CELL = struct.Struct(f"<{16 + BUCKETS}Q")
assert _CELL.size == CELL
FAILED = 1 << 8
"""Exit code 1, as from waitpid."""


@dataclass
class Process:
    """A process of the program. `calls`: by address of the function, and caller or thread (0 if not distinguished)."""

    pid: int
    root: str = ""
    """The directory that its paths are in; "" for the root directory."""
    command: list[str] = field(default_factory=list)
    has_reported: bool = False
    """Whether it has reported itself in the journal, as a Python process with probes."""
    parent: int | None = None
    names: Names = field(init=False)
    attached: int = 0
    matched: dict[str, set[int]] = field(default_factory=dict)
    """The addresses of the functions that each pattern matches."""
    waiting: dict[str, str] = field(default_factory=dict)
    """Patterns that match nothing, with the reasons."""
    skipped: list[tuple[str, str]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    parts: list[int] = field(default_factory=list)
    """The numbers of its parts of the file of counts."""
    remarks: list[str] = field(default_factory=list)
    calls: dict[tuple[int, int], Calls] = field(default_factory=dict)
    stacks: list[StackCounts] = field(default_factory=list)
    stack_layout: dict[str, Any] = field(default_factory=dict)
    """Where the table of stacks is (fprobe.run.tracee.stacks)."""
    stacks_lost: int = 0
    """Calls whose stack found no place."""
    stacks_cut: int = 0
    """Calls of whose stack the outermost frames are left out."""
    maps: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Offset and size of each map of native handlers, by name."""
    formats: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Group and `format` file of each probe event, by number."""
    own_threads: set[int] = field(default_factory=set)
    """Threads of ours, whose calls are not shown."""
    histograms: dict[str, str] = field(default_factory=dict)
    """The `hist` file of each event, by group and name, if there were triggers."""
    unrecorded: tuple[str, ...] = ()
    """The options of which nothing is recorded in processes that it forks, where no interpreter of ours runs."""
    dropped: int = 0
    """Calls that the table had no space for."""
    value_layouts: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Where the histograms of values are, by number (fprobe.run.tracee.value_histograms)."""
    by_is_signed: bool = False
    """Whether the argument that tells calls apart is a signed number."""
    where: str = ""
    """The filter of calls that are counted."""

    def __post_init__(self) -> None:
        self.names = Names(self.root)

    def take(self, entry: dict[str, Any]) -> None:
        """Take over an entry of the journal."""
        if "argv" in entry:  # addresses change with an exec: forget the names from before
            self.command, self.names, self.has_reported = entry["argv"], Names(self.root), True
        self.unrecorded = tuple(entry.get("unrecorded", self.unrecorded))
        self.names.take_libraries(entry.get("libraries", []))
        self.names.take_code(entry.get("code", []))
        self.names.take_functions(functions := entry.get("functions", []))
        if functions:
            self.matched.setdefault(entry["pattern"], set()).update(address for address, *_ in functions)
        self.waiting = dict(entry.get("waiting", self.waiting))
        self.attached += entry.get("attached", 0)
        self.skipped += [(name, reason) for name, reason in entry.get("skipped", ())]
        self.maps |= entry.get("maps", {})
        if "event" in entry:
            self.formats[entry["event"]] = (entry["group"], entry["format"])
        self.own_threads |= {entry["thread"]} if "thread" in entry else set()
        if "histogram" in entry:
            self.histograms[entry["histogram"]] = entry["text"]
        self.stack_layout = entry.get("stacks", self.stack_layout)
        if "values" in entry:
            self.value_layouts[entry["values"]] = entry["layout"]
        self.by_is_signed |= entry.get("by_signed", False)
        self.where = entry.get("where", self.where)
        self.remarks += [entry["remark"]] if "remark" in entry else []
        self.errors += [entry["error"]] if "error" in entry else []

    def inherit(self, parent: Process) -> None:
        """Take over the names, stacks, maps and formats of the process that forked this one."""
        self.parent = parent.pid
        self.names.inherit(parent.names)
        self.stack_layout = self.stack_layout or parent.stack_layout
        self.maps = parent.maps
        self.value_layouts = parent.value_layouts | self.value_layouts
        self.by_is_signed |= parent.by_is_signed
        self.formats = parent.formats | self.formats
        self.matched = {pattern: set(functions) for pattern, functions in parent.matched.items()} | self.matched
        self.command = self.command or parent.command
        self.unrecorded = parent.unrecorded
        if self.unrecorded:
            self.remarks.append(
                f"a process that C code has forked: nothing is recorded by {' and '.join(self.unrecorded)}"
            )

    @property
    def has_anything(self) -> bool:
        """Whether there is anything to report."""
        return bool(self.calls or self.stacks or self.value_layouts or self.errors or self.skipped or self.remarks)

    def matches(self, patterns: Iterable[str], ip: int) -> bool:
        """Whether one of these patterns matches the function."""
        return any(ip in self.matched.get(pattern, ()) for pattern in patterns)

    def grouped(self, by: str) -> list[Calls]:
        """The calls of each function, or of each function and caller or thread, in no order."""
        return self.functions() if by == "function" else list(self.calls.values())

    def origin(self, calls: Calls, by: str) -> str | int:
        """What tells calls apart: the caller, the thread's number, or the value of an argument."""
        if by == "caller":
            return str(self.names.place(calls.by))
        return calls.by - (1 << 64) if self.by_is_signed and calls.by >> 63 else calls.by

    def group(self, calls: Calls, by: str) -> str:
        """The same as text after a function's name; empty if calls are grouped by function alone."""
        return group_text(by, self.origin(calls, by))

    def functions(self) -> list[Calls]:
        """The calls of each function, summed over callers and threads."""
        found: dict[int, Calls] = {}
        for each in self.calls.values():
            found.setdefault(each.ip, Calls(each.ip)).add(each)
        return list(found.values())


def has_total(by: str) -> bool:
    """Whether calls of several processes are added up: callers and threads are of one process."""
    return by not in ("caller", "thread")


def total_of(processes: Iterable[Process], by: str) -> Process:
    """The calls of all processes by the names of the functions, whose addresses may differ, and by arguments."""
    total, numbers = Process(0), dict[Named, int]()
    for process in processes:
        total.by_is_signed |= process.by_is_signed
        for calls in process.grouped(by):
            named = process.names.function(calls.ip)._replace(place="")
            number = numbers.setdefault(named, len(numbers) + 1)
            total.calls.setdefault((number, calls.by), Calls(number, calls.by)).add(calls)
            for pattern, functions in process.matched.items():
                if calls.ip in functions:
                    total.matched.setdefault(pattern, set()).add(number)
    total.names.take_functions([(number, each.name, each.library, each.types) for each, number in numbers.items()])
    return total


class NotCovered(NamedTuple):
    """A process without probes. `reason`: why, as it has said itself; empty if it has said nothing."""

    command: list[str]
    reason: str


@dataclass
class Results:
    """The results of a run. `started`: process id -> command of each process that the program has started."""

    processes: list[Process]
    started: dict[int, list[str]]
    uncounted: int
    """Number of processes that found no free part in the file."""
    refused: dict[int, NotCovered] = field(default_factory=dict)
    """Process id -> what a Python that cannot have probes has reported."""
    status: int = 0
    """The program's exit status, as from waitpid; 0 while it is running."""

    def joined(self, other: Results) -> Results:
        """The results of both, of different processes."""
        uncounted = self.uncounted + other.uncounted
        processes, started = self.processes + other.processes, self.started | other.started
        return Results(processes, started, uncounted, self.refused | other.refused)

    @property
    def is_interrupted(self) -> bool:
        """Whether the program ended by Ctrl-C: by SIGINT, or with the exit code that a shell has for it."""
        return self.status in (signal.SIGINT, (128 + signal.SIGINT) << 8)

    @property
    def exit_status(self) -> int:
        """The exit status of the command, as from waitpid: the program's or, if that is 0 and nothing was probed, 1."""
        is_probed = any(process.attached for process in self.processes)
        return self.status or (0 if is_probed else FAILED)

    @property
    def not_covered(self) -> dict[int, NotCovered]:
        """The started processes that have not reported themselves as covered, by process id."""
        known = {process.pid for process in self.processes if process.has_reported}
        silent = {pid: NotCovered(command, "") for pid, command in self.started.items() if pid not in known}
        return silent | self.refused


def read(counts: int, journal: int, root: str = "") -> Results:
    """The results so far. The program may still be running. `root`: see `Process`."""
    entries = list(session.entries(journal))
    processes: dict[int, Process] = {}
    refused = {
        each["pid"]: NotCovered(each["command"], each["not_covered"]) for each in entries if "not_covered" in each
    }
    for entry in entries:
        if "not_covered" not in entry:
            processes.setdefault(entry["pid"], Process(entry["pid"], root)).take(entry)
    for entry in entries:
        if "forked_by" in entry and not (child := processes[entry["pid"]]).command and entry["forked_by"] in processes:
            child.inherit(processes[entry["forked_by"]])
    of_part: dict[int, Process] = {}
    for header in session.parts(counts):
        process = of_part[header.number] = processes.setdefault(header.pid, Process(header.pid, root))
        process.parts.append(header.number)
        if header.parent in of_part and not process.command:
            process.inherit(of_part[header.parent])
        if header.has_lost_maps:
            process.remarks.append(
                "mremap is denied, by seccomp for example: what the maps of native handlers contain in this process is lost"
            )
        _count(process, cells(counts, header.number, process.own_threads))
    for process in processes.values():
        _read_stacks(process, counts)
    _tell_unrecorded(list(processes.values()), session.forks(counts))
    started = {entry["started"]: entry["command"] for entry in entries if "started" in entry}
    return Results(list(processes.values()), started, session.processes_not_counted(counts), refused)


def _tell_unrecorded(processes: Sequence[Process], forks: int) -> None:
    """Say in how many processes that C code has forked nothing was recorded, besides those that have counted something."""
    concerned = [each for each in processes if each.unrecorded]
    silent = forks - sum(not each.has_reported for each in concerned)
    if concerned and silent > 0:
        number = "a process" if silent == 1 else f"{silent:,} processes"
        options = " and ".join(concerned[0].unrecorded)
        concerned[0].remarks.append(f"nothing is recorded by {options} in {number} that C code has forked")


def _count(process: Process, found: Iterable[Calls]) -> None:
    for calls in found:
        if calls.ip:
            process.calls.setdefault((calls.ip, calls.by), Calls(calls.ip, calls.by)).add(calls)
        else:
            process.dropped += calls.hits


def _read_stacks(process: Process, counts: int) -> None:
    layout = process.stack_layout
    if not layout or not process.parts:
        return
    start = session.HEADER + process.parts[-1] * session.PART + session.MAPS_AT + layout["offset"]
    memory = StackMemory(lambda offset, size: os.pread(counts, size, start + offset), layout["pieces"], layout["minor"])
    process.stacks = [each for each in memory.stacks() if not _is_ours(each, layout)]
    process.stacks_lost, process.stacks_cut = memory.lost, memory.cut


def _is_ours(stack: StackCounts, layout: dict[str, Any]) -> bool:
    """Whether it is a call of our own code, which runs in the program to arm and disarm probes."""
    files = [frame.filename for frame in stack.frames if isinstance(frame, PythonPlace)]
    return files[:1] != [] and (
        files[0].startswith(tuple(layout["packages"])) or any(file.startswith(layout["tracee"]) for file in files)
    )


def cells(counts: int, number: int, leave_out: Collection[int] = ()) -> Iterator[Calls]:
    """The cells in use in a part. The first of each row has `ip` 0, and `hits` is the number of calls that found no cell.

    `leave_out`: threads without whose rows.
    """
    start = session.HEADER + number * session.PART + session.ROWS_AT
    thread = 0
    for low, high in used(counts, start, start + session.ROWS * session.STRIDE):
        for at in range(low, high, CELL):
            place = (at - start) % session.STRIDE
            if place == 0 or at == low:
                (thread,) = _THREAD.unpack(os.pread(counts, _THREAD.size, at - place))
            if thread in leave_out:
                continue
            calls = calls_of(_CELL.unpack(os.pread(counts, CELL, at)))
            if place == 0:
                yield Calls(0, hits=calls.by)
            elif calls.ip and calls.hits:
                yield calls
