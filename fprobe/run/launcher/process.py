"""A process of a run: what it has said in the journal, and what has been counted in it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from fprobe.calls.stack_memory import StackCounts
from fprobe.report.counts import Calls
from fprobe.report.tables import argument_of, group_text
from fprobe.run.launcher.names import Named, Names


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
    by_signed: set[int] = field(default_factory=set)
    """The functions where the argument that tells calls apart is a signed number."""
    by_text: set[int] = field(default_factory=set)
    """The functions where it is a text."""
    texts_at: int | None = None
    """Where the texts are, in the memory for maps (fprobe.run.tracee.selected)."""
    texts: dict[int, str] = field(default_factory=dict)
    """The texts by their numbers."""
    where: str = ""
    """The filter of calls that are counted."""

    def __post_init__(self) -> None:
        self.names = Names(self.root)

    def take(self, entry: dict[str, Any]) -> None:
        """Take over an entry of the journal."""
        if "argv" in entry:
            self.command, self.names, self.has_reported = entry["argv"], self.names.forget(), True
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
        self.by_signed.update(entry.get("by_signed", ()))
        self.by_text.update(entry.get("by_text", ()))
        self.texts_at = entry.get("texts", self.texts_at)
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
        self.by_signed |= parent.by_signed
        self.by_text |= parent.by_text
        self.texts_at = parent.texts_at if self.texts_at is None else self.texts_at
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

    @property
    def not_found(self) -> list[dict[str, str]]:
        """The patterns that match nothing, as JSON has them."""
        return [{"pattern": pattern, "reason": reason} for pattern, reason in self.waiting.items()]

    def matches(self, patterns: Iterable[str], ip: int) -> bool:
        """Whether one of these patterns matches the function."""
        return any(ip in self.matched.get(pattern, ()) for pattern in patterns)

    def grouped(self, by: str) -> list[Calls]:
        """The calls of each function, or of each function and caller or thread, in no order."""
        return self.functions() if by == "function" else list(self.calls.values())

    def origin(self, calls: Calls, by: str) -> str | int | None:
        """What tells calls apart: the caller, the thread's number, or the value of an argument.

        None: the calls of all texts for which there was no place.
        """
        if by == "caller":
            return str(self.names.place(calls.by))
        if calls.ip in self.by_text and argument_of(by) is not None:
            return self.texts.get(calls.by)
        return calls.by - (1 << 64) if calls.by >> 63 and calls.ip in self.by_signed else calls.by

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
        total.texts |= process.texts
        for calls in process.grouped(by):
            named = process.names.function(calls.ip)._replace(place="")
            number = numbers.setdefault(named, len(numbers) + 1)
            total.calls.setdefault((number, calls.by), Calls(number, calls.by)).add(calls)
            total.by_signed |= {number} if calls.ip in process.by_signed else set()
            total.by_text |= {number} if calls.ip in process.by_text else set()
            for pattern, functions in process.matched.items():
                if calls.ip in functions:
                    total.matched.setdefault(pattern, set()).add(number)
    total.names.take_functions([(number, each.name, each.library, each.types) for each, number in numbers.items()])
    return total
