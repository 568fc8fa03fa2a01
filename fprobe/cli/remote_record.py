"""`fprobe record -p`: records of running processes in a trace.dat or Parquet."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, NoReturn

from fprobe.cli.attaching import attached_to, exit_code
from fprobe.cli.failure import Failure
from fprobe.cli.interrupting import end_process
from fprobe.cli.run import check_events
from fprobe.cli.surviving import NOT_TO_STANDARD_OUTPUT, disk_errors, disk_failure
from fprobe.run.launcher.recording import RemoteRecording

if TYPE_CHECKING:
    from fprobe.cli.console import Console
    from fprobe.run.launcher.attached import AttachedProcesses, Targets
    from fprobe.run.launcher.results import Results
    from fprobe.run.session import Settings

_POLLING = 0.02


def record_running(
    targets: Targets, settings: Settings, output: str, compression: str | None, console: Console
) -> NoReturn:
    """Attach, record until the processes are not wanted, detach, and finish the file. Ends this process.

    `compression`: of a trace.dat; None: the file is Parquet. The file is made, or replaced, when an event has been defined.
    """
    if output == "-":
        raise Failure(NOT_TO_STANDARD_OUTPUT)
    check_events(settings.events)
    _check_output(output)
    recording = None
    with attached_to(targets, settings) as processes:
        while not _is_defined(processes) and processes.wait_until(time.monotonic() + _POLLING):
            pass
        if _is_defined(processes):
            recording = _recording(output, processes, compression)
        while recording is not None and processes.wait_until(time.monotonic() + _POLLING):
            recording.drain()
    if recording is not None:
        with disk_errors(output):
            recording.finish()
    found = processes.results()
    _summarise(console, found, recording, output)
    if recording is not None and recording.is_incomplete:
        raise disk_failure(output, "records are missing")
    end_process(exit_code(found))


def _is_defined(processes: AttachedProcesses) -> bool:
    """Whether one of the events is there, in one of the processes."""
    return any(each.functions for each in processes.members)


def _check_output(output: str) -> None:
    """Raise Failure, before a process is touched, if the file cannot be made or replaced."""
    directory = os.path.dirname(output) or "."  # noqa: PTH120  # of a text
    if not os.access(directory, os.W_OK | os.X_OK):
        raise Failure(f"{output}: its directory cannot be written to")
    if os.path.exists(output) and not os.path.isfile(output):  # noqa: PTH110, PTH113  # of a text
        raise Failure(f"{output}: not a regular file; give another name with -o")


def _recording(output: str, processes: AttachedProcesses, compression: str | None) -> RemoteRecording:
    try:
        with disk_errors(output):
            return RemoteRecording(output, processes, compression)
    except OSError as error:
        raise Failure(f"{output}: {error.strerror}") from None
    except ValueError as error:
        raise Failure(str(error)) from None


def _summarise(console: Console, found: Results, recording: RemoteRecording | None, output: str) -> None:
    for process in found.processes:
        for text in (*process.errors, *process.waiting.values(), *process.remarks):
            if text not in found.told:
                console.line(f"# process {process.pid}: {text}")
    records = 0 if recording is None else recording.hits
    console.note(f"{records:,} record{'s' * (records != 1)}")
    console.note(f"{output}: {'not written, since no event was defined' if recording is None else recording.text}")
    console.document(
        {
            "interrupted": found.is_interrupted,
            "processes": [
                {"pid": each.pid, "errors": each.errors, "not_found": each.not_found} for each in found.processes
            ],
            "records": records,
            "lost": 0 if recording is None else recording.lost,
            "file": None if recording is None else output,
            "disk_full": recording is not None and recording.is_incomplete,
        }
    )
    console.flush()
