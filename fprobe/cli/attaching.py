"""The option -p: processes that already run, by number or by name, and verbs that attach to them."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fprobe.cli.failure import BAD_INPUT, FAILED, Failure
from fprobe.cli.formats import absent_if_refused, empty, prepare_rows, report_file
from fprobe.cli.habits import of_process

if TYPE_CHECKING:
    from fprobe.run.launcher.attached import AttachedProcesses, Targets
    from fprobe.run.launcher.report_selection import ReportSelection
    from fprobe.run.launcher.results import Results
    from fprobe.run.session import Settings

_Command = TypeVar("_Command", bound=Callable[..., Any])
_LISTED = 8
_SCRIPT_AT = 1


def pid_options(command: _Command) -> _Command:
    """Adds -p, --duration and --children. The command gets them as `targets`: None without -p."""

    @click.option(
        "--pid",
        "-p",
        "names",
        metavar="PID|NAME",
        multiple=True,
        help="Attach to this running process, by number or name; repeatable.",
    )
    @click.option(
        "--duration",
        metavar="SECONDS",
        type=click.FloatRange(0, min_open=True),
        help="With -p: detach after that time; default: at Ctrl-C, or when the process ends.",
    )
    @click.option("--children", is_flag=True, help="With -p: also the processes that it has forked, and will fork.")
    @functools.wraps(command)
    def wrapped(
        *positional: Any, names: tuple[str, ...], duration: float | None, children: bool, **options: Any
    ) -> Any:
        if not names and (duration is not None or children):
            raise Failure(f"{'--children' if children else '--duration'} is for a running process: give -p PID")
        targets = _targets(names, duration, children) if names else None
        return command(*positional, targets=targets, **options)

    return wrapped  # type: ignore[return-value]  # it has the signature of what it wraps


def _targets(names: Sequence[str], duration: float | None, children: bool) -> Targets:
    from fprobe.run.launcher.attached import Targets
    from sandbox.symbols.perfmap import perf_map

    perf_map.is_wanted = False  # no program runs in this process, and the file would stay
    return Targets(pids_of(names), duration, children)


def refuse_with_pid(**given: object) -> None:
    """Raise Failure for an option that is given, and does not go with -p."""
    for name, value in given.items():
        if value:
            raise Failure(f"--{name.replace('_', '-')} is not for a running process (-p)")


def attach_and_report(
    targets: Targets, settings: Settings, selection: ReportSelection, output: str | None = None, format_: str = "text"
) -> None:
    """Attach, wait, detach, and write the report to the file, or to standard output. Ends this process."""
    from fprobe.cli.interrupting import end_process

    path = output if output not in (None, "-") else None
    with absent_if_refused(path):
        file = report_file(path, format_, kept=True) if path is not None else None
        descriptor = 1 if file is None else file
        if format_ == "parquet":
            prepare_rows()
        processes: AttachedProcesses | None = None
        failure: Failure | None = None
        try:
            with attached_to(targets, settings) as processes:
                from fprobe.run.launcher.attached_report import AttachedReport  # while the calls are made

                if file is not None:
                    empty(file, format_)
                report = AttachedReport(processes, selection, descriptor, format_)
                report.wait()
        except Failure as error:
            if processes is None:
                raise
            failure = error  # of detaching: what was counted is there
    try:
        found = report.write()
    except OSError as error:
        if descriptor == 1:  # which every verb handles in the same way
            raise
        raise Failure(f"{output}: the report could not be written: {error.strerror}", FAILED) from None
    if failure is not None:
        raise failure
    end_process(exit_code(found))


def exit_code(found: Results) -> int:
    """0 if something in the processes got a probe; else 1, since nothing happened of what was asked for."""
    return 0 if found.is_probed else FAILED


@contextlib.contextmanager
def attached_to(targets: Targets, settings: Settings) -> Iterator[AttachedProcesses]:
    """The processes, attached inside the block, which Ctrl-C does not interrupt. Raises Failure."""
    from fprobe.cli.console import progress_line
    from fprobe.cli.interrupting import INTERRUPTED, Interrupted, ctrl_c
    from fprobe.run.launcher.attached import attached
    from sandbox.remote.refusals import Refused

    ctrl_c.hold()
    try:
        with attached(targets, settings, lambda: ctrl_c.pressed, progress_line) as processes:
            yield processes
    except Refused as error:
        if error.errno == errno.EINTR:
            raise Interrupted(INTERRUPTED) from None
        raise Failure(str(error.strerror), FAILED if error.errno == errno.ETIMEDOUT else BAD_INPUT) from None


def pids_of(names: Sequence[str]) -> tuple[int, ...]:
    """The numbers of the processes with these numbers or names. Raises Failure for one that is none, or several."""
    return tuple(dict.fromkeys(_pid_of(name) for name in names))


def _pid_of(name: str) -> int:
    if name.isascii() and name.isdigit():
        return int(name)
    if not name:
        raise Failure("-p is empty; give a process's number or name")
    from sandbox.loading.load import C_SUFFIXES, IR_SUFFIXES

    if Path(name).suffix in (*C_SUFFIXES, *IR_SUFFIXES) or ("/" in name and Path(name).is_file()):
        raise Failure(
            f"-p means a running process, and {name!r} is a file; a program's source is given by --program {name}"
        )
    found = [(pid, line) for pid, names, line in _processes() if name in names]
    if not found:
        raise Failure(f"no process is called {name!r}; {of_process(name) or 'give its number, as ps shows it'}")
    if len(found) > 1:
        shown = "; ".join(f"{pid} ({line})" for pid, line in found[:_LISTED])
        more = f"; and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
        raise Failure(f"{len(found)} processes are called {name!r}: {shown}{more}; give one's number, or -p for each")
    return found[0][0]


def _processes() -> Iterator[tuple[int, set[str], str]]:
    """Number, names and command line of each process but this one: its own name, its program's, and its script's."""
    for entry in sorted((each for each in os.listdir("/proc") if each.isdigit()), key=int):  # noqa: PTH208  # names only
        try:
            comm = os.fsdecode(Path(f"/proc/{entry}/comm").read_bytes()).removesuffix("\n")
            words = os.fsdecode(Path(f"/proc/{entry}/cmdline").read_bytes()).split("\0")[:-1]
        except OSError:
            continue
        if words and int(entry) != os.getpid():
            scripts = [word for word in words[_SCRIPT_AT:] if not word.startswith("-")][:1]
            yield int(entry), {comm, *(word.rpartition("/")[2] for word in (words[0], *scripts))}, " ".join(words)[:60]
