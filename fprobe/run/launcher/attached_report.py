"""The report on processes that were attached to: the same as that of a program that was run."""

from __future__ import annotations

from fprobe.run.launcher.attached import AttachedProcesses
from fprobe.run.launcher.report import recorded_of, write_rendered
from fprobe.run.launcher.report_selection import Recorded, ReportSelection
from fprobe.run.launcher.results import Results


def write(processes: AttachedProcesses, selection: ReportSelection, output: int, format_: str) -> None:
    """Write the report on all of them to the descriptor `output`. Raises OSError."""
    found, recorded = Results([], {}, 0), Recorded({}, {}, {})
    for each in processes.members:
        own = each.results()
        also = recorded_of(own, each.counts, selection)
        found = found.joined(own)
        recorded = Recorded(
            {**recorded.calls, **also.calls},
            {**recorded.events, **also.events},
            {**recorded.maps, **also.maps},
            {**recorded.values, **also.values},
        )
    write_rendered(output, found, selection, recorded, processes.ticks, format_)
