"""The report on processes that were attached to: the same as that of a program that was run."""

from __future__ import annotations

import contextlib

from fprobe.run.launcher.attached import AttachedProcesses
from fprobe.run.launcher.report import WITHOUT_WORDS, finish_rows, recorded_of, rows_of, write_report
from fprobe.run.launcher.report_selection import Recorded, ReportSelection
from fprobe.run.launcher.results import Results

STANDARD_OUTPUT = 1


class AttachedReport:
    """The report on all of them, for the descriptor `output`."""

    def __init__(self, processes: AttachedProcesses, selection: ReportSelection, output: int, format_: str) -> None:
        self._processes, self._selection, self._output, self._format = processes, selection, output, format_
        members = [(each.counts, each.journal, each.root) for each in processes.members]
        self._rows = rows_of(output, members, format_)

    def wait(self) -> None:
        """Wait as long as the processes are wanted; rows are written meanwhile."""
        with self._rows.while_running() if self._rows is not None else contextlib.nullcontext():
            self._processes.wait()

    def write(self) -> Results:
        """Write it, when they were detached. Returns what it is of. Raises OSError."""
        if self._rows is not None:
            found = self._processes.results()
            finish_rows(self._rows, found, self._selection, self._processes.ticks)
            return found
        found, recorded = Results([], {}, 0), Recorded({}, {}, {})
        for each in self._processes.members:
            own = each.results()
            also = recorded_of(own, each.counts, self._selection)
            found = found.joined(own)
            recorded = Recorded(
                {**recorded.calls, **also.calls},
                {**recorded.events, **also.events},
                {**recorded.maps, **also.maps},
                {**recorded.values, **also.values},
            )
        if self._output == STANDARD_OUTPUT or self._format in WITHOUT_WORDS:  # a file is read later, and alone
            found.told = frozenset(self._processes.told)
        write_report(self._output, found, recorded, self._selection, self._processes.ticks, self._format)
        return found
