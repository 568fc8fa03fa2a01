"""The results of a run by process, read from the file of counts and the journal."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fprobe.calls.stack_memory import PythonPlace, StackCounts, StackMemory
from fprobe.calls.texts import TEXT, TEXTS, texts_in
from fprobe.report.buckets import BUCKETS
from fprobe.report.counts import Calls, calls_of
from fprobe.run import session
from fprobe.run.launcher.followed import FollowedProcesses, NotCovered
from fprobe.run.launcher.process import Process
from sandbox.threads.counters import used

CELL = 2048
"""As in `ftrace.hit.account`, which takes too long to import here."""
_THREAD = struct.Struct("<Q")
_CELL = struct.Struct(f"<{16 + BUCKETS}Q")
assert _CELL.size == CELL
FAILED = 1 << 8
"""Exit code 1, as from waitpid."""


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
    told: frozenset[str] = frozenset()
    """Sentences that standard error has had already, and that reports as text do not repeat."""

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
        return self.status or (0 if self.is_probed else FAILED)

    @property
    def is_probed(self) -> bool:
        """Whether anything that was asked for has happened: a function has got a probe, in one of the processes."""
        return any(process.attached for process in self.processes)

    @property
    def not_covered(self) -> dict[int, NotCovered]:
        """The started processes that have not reported themselves as covered, by process id."""
        known = {process.pid for process in self.processes if process.has_reported}
        silent = {pid: NotCovered(command, "") for pid, command in self.started.items() if pid not in known}
        return silent | self.refused


def read(counts: int, journal: int, root: str = "") -> Results:
    """The results so far. The program may still be running. `root`: see `Process`."""
    followed = FollowedProcesses(counts, journal, root)
    headers = followed.update()
    for header in headers:
        process = followed.processes[header.pid]
        process.parts.append(header.number)
        if header.has_lost_maps:
            process.remarks.append(
                "mremap is denied, by seccomp for example: what the maps of native handlers contain in this process is lost"
            )
        _count(process, cells(counts, header.number, process.own_threads))
        if process.texts_at is not None:
            process.texts |= _texts(counts, header.number, process.texts_at)
    processes = list(followed.processes.values())
    for process in processes:
        _read_stacks(process, counts)
    _tell_unrecorded(processes, session.forks(counts))
    return Results(processes, followed.started, session.processes_not_counted(counts), followed.refused)


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
        if ip := process.names.current(calls.ip):
            process.calls.setdefault((ip, calls.by), Calls(ip, calls.by)).add(calls)
        else:
            process.dropped += calls.hits


def _texts(counts: int, part: int, offset: int) -> dict[int, str]:
    start, found = session.HEADER + part * session.PART + session.MAPS_AT + offset, dict[int, str]()
    for low, high in used(counts, start, start + TEXTS):
        first = low - (low - start) % TEXT
        found |= texts_in(os.pread(counts, high + TEXT - first, first))
    return found


def _read_stacks(process: Process, counts: int) -> None:
    layout = process.stack_layout
    for part in process.parts if layout else ():  # one for each program that it has executed
        start = session.HEADER + part * session.PART + session.MAPS_AT + layout["offset"]
        read = partial(_read_at, counts, start)
        memory = StackMemory(read, layout["pieces"], layout["minor"])
        process.stacks += [each for each in memory.stacks() if not _is_ours(each, layout)]
        process.stacks_lost += memory.lost
        process.stacks_cut += memory.cut


def _read_at(counts: int, start: int, offset: int, size: int) -> bytes:
    return os.pread(counts, size, start + offset)


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
