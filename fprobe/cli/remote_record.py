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
    from fprobe.run.session import Settings

_POLLING = 0.02


def record_running(
    targets: Targets, settings: Settings, output: str, compression: str | None, console: Console
) -> NoReturn:
    """Attach, record until the processes are not wanted, detach, and finish the file. Ends this process.

    `compression`: of a trace.dat; None: the file is Parquet.
    """
    if output == "-":
        raise Failure(NOT_TO_STANDARD_OUTPUT)
    check_events(settings.events)
    _check_output(output)
    with attached_to(targets, settings) as processes:
        recording = _recording(output, processes, compression)
        while processes.wait_until(time.monotonic() + _POLLING):
            recording.drain()
    with disk_errors(output):
        recording.finish()
    _summarise(console, processes, recording)
    if recording.is_incomplete:
        raise disk_failure(output, "records are missing")
    end_process(exit_code(processes))


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


def _summarise(console: Console, processes: AttachedProcesses, recording: RemoteRecording) -> None:
    found = processes.results().processes
    for process in found:
        for text in (*process.errors, *process.waiting.values(), *process.remarks):
            console.line(f"# process {process.pid}: {text}")
    console.note(f"{recording.hits:,} record{'s' * (recording.hits != 1)}")
    console.note(f"{recording.file.path}: {recording.text}")
    console.document(
        {
            "processes": [{"pid": each.pid, "errors": each.errors, "not_found": each.waiting} for each in found],
            "records": recording.hits,
            "lost": recording.lost,
            "file": recording.file.path,
            "disk_full": recording.is_incomplete,
        }
    )
    console.flush()
