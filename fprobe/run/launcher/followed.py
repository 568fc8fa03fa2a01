"""The processes of a program that is running, as far as they have said who they are."""

from __future__ import annotations

from fprobe.run import session
from fprobe.run.launcher.results import Process


class FollowedProcesses:
    """Those of a run, or of an attachment: the process itself, and those that it forks. `root`: see `Process`."""

    def __init__(self, counts: int, journal: int, root: str = "") -> None:
        self._counts, self._journal, self._root = counts, journal, root
        self._read = 0
        self.processes: dict[int, Process] = {}
        """By process id."""

    def update(self) -> list[session.PartHeader]:
        """Take what the journal has since the last call. Returns the parts that processes have taken."""
        entries, self._read = session.entries_since(self._journal, self._read)
        for entry in entries:
            if "not_covered" in entry:
                continue
            self.of(entry["pid"]).take(entry)
            if "forked_by" in entry:
                self._inherit(entry["pid"], entry["forked_by"])
        headers = session.parts(self._counts)
        pids = {header.number: header.pid for header in headers}
        for header in headers:
            self.of(header.pid)
            if header.parent in pids:
                self._inherit(header.pid, pids[header.parent])
        return headers

    def of(self, pid: int) -> Process:
        """The process of this number."""
        return self.processes.setdefault(pid, Process(pid, self._root))

    def _inherit(self, pid: int, parent: int) -> None:
        if not self.of(pid).command and parent in self.processes:
            self.processes[pid].inherit(self.processes[parent])
