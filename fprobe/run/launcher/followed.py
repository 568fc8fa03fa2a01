"""The processes of a program that is running, as far as they have said who they are."""

from __future__ import annotations

from typing import Any, NamedTuple

from fprobe.run import session
from fprobe.run.launcher.process import Process


class NotCovered(NamedTuple):
    """A process without probes. `reason`: why, as it has said itself; empty if it has said nothing."""

    command: list[str]
    reason: str


class FollowedProcesses:
    """Those of a run, or of an attachment: the process itself, and those that it forks. `root`: see `Process`."""

    def __init__(self, counts: int, journal: int, root: str = "") -> None:
        self._counts, self._journal, self._root = counts, journal, root
        self._read = 0
        self.processes: dict[int, Process] = {}
        """By process id."""
        self.started: dict[int, list[str]] = {}
        """Process id -> command of each process that the program has started."""
        self.refused: dict[int, NotCovered] = {}
        """Process id -> what a Python that cannot have probes has reported."""

    def update(self) -> list[session.PartHeader]:
        """Take what the journal has since the last call. Returns the parts that processes have taken."""
        entries, self._read = session.entries_since(self._journal, self._read)
        for entry in entries:
            self._take(entry)
        for entry in entries:
            if "forked_by" in entry:
                self._inherit(entry["pid"], entry["forked_by"])
        headers = session.parts(self._counts)
        pids = {header.number: header.pid for header in headers}
        for header in headers:
            self.of(header.pid)
            if header.parent in pids:
                self._inherit(header.pid, pids[header.parent])
        return headers

    def _take(self, entry: dict[str, Any]) -> None:
        if "started" in entry:
            self.started[entry["started"]] = entry["command"]
        if "not_covered" in entry:
            self.refused[entry["pid"]] = NotCovered(entry["command"], entry["not_covered"])
        else:
            self.of(entry["pid"]).take(entry)

    def of(self, pid: int) -> Process:
        """The process of this number."""
        return self.processes.setdefault(pid, Process(pid, self._root))

    def _inherit(self, pid: int, parent: int) -> None:
        if not self.of(pid).command and parent in self.processes:
            self.processes[pid].inherit(self.processes[parent])
