"""attach_to(): probes in a process that already runs, as `fprobe run -p` attaches them."""

from __future__ import annotations

import errno
import os
import warnings
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fprobe.run.launcher.attached import Attached

Patterns = str | tuple[str, ...] | list[str]
"""A pattern, or several."""


class AttachedProcess:
    """Process `pid`, with probes inside the `with` block. What it has recorded can still be read after that."""

    def __init__(self, pid: int, stat: Patterns, trace: Patterns, event: Patterns) -> None:
        self.pid = pid
        self._stat, self._trace, self._event = map(_several, (stat, trace, event))
        if not (self._stat or self._trace or self._event):
            raise ValueError("nothing is to be recorded; give stat, trace or event")
        self._attached: Attached | None = None
        self._document: dict[str, Any] = {}

    def __enter__(self) -> AttachedProcess:
        """Attach. Raises OSError, with the reason, if the process cannot be attached to, or nothing there can be probed.

        Warns of patterns that match nothing so far, and of events that could not be defined.
        """
        from fprobe.report.counts import SELF
        from fprobe.run.launcher.attached import Attached
        from fprobe.run.session import Settings
        from sandbox.x86_64.tsc import Ticks

        counted = tuple(dict.fromkeys((*self._stat, *self._trace)))
        settings = Settings(
            counted,
            with_events=bool(self._trace),
            events=self._event,
            children=False,
            measures=SELF if self._stat else 0,
        )
        self._ticks = Ticks()
        self._attached = Attached(self.pid, settings)
        self._tell_undone(self._attached)
        return self

    def _tell_undone(self, process: Attached) -> None:
        """Raise OSError if nothing was probed, nor ever will be; else warn of what was not."""
        errors, waiting = process.undone()
        if errors and not (waiting or process.functions):
            self.__exit__(None, None, None)
            raise OSError(errno.EINVAL, "; ".join(errors))
        for text in (*errors, *waiting):
            warnings.warn(f"process {self.pid}: {text}", RuntimeWarning, stacklevel=3)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._attached is not None:
            try:
                self._attached.detach()
                self._document = self._read(self._attached)
            finally:
                self._attached.close()
                self._attached = None

    def stat(self) -> list[dict[str, Any]]:
        """An object for each function that was called, as in `functions` of `fprobe run --json`."""
        return list(self._process()["functions"])

    def trace(self) -> list[dict[str, Any]]:
        """An object for each call, as in `calls` of `fprobe run --json`."""
        return list(self._process().get("calls", ()))

    def event(self) -> list[dict[str, Any]]:
        """An object for each record, as in `probe_events` of `fprobe run --json`."""
        return list(self._process().get("probe_events", ()))

    @property
    def errors(self) -> list[str]:
        """What could not be done in the process: wrong definitions of events, and patterns that match nothing."""
        process = self._process()
        return [*process["errors"], *(each["reason"] for each in process["not_found"])]

    def _process(self) -> dict[str, Any]:
        if self._attached is not None:
            return self._read(self._attached)
        if not self._document:
            raise ValueError(f"process {self.pid} has not been attached to; use it in a `with` statement first")
        return self._document

    def _read(self, process: Attached) -> dict[str, Any]:
        from fprobe.run.launcher.document import document
        from fprobe.run.launcher.report import recorded_of
        from fprobe.run.launcher.report_selection import ReportSelection

        selection = ReportSelection(self._stat, (), self._trace, "function", events=self._event)
        found = process.results()
        recorded = recorded_of(found, process.counts, selection)
        made = document(found, self._ticks.per_nanosecond(), selection, recorded)["processes"]
        return dict(made[0])


def attach_to(pid: int, *, stat: Patterns = (), trace: Patterns = (), event: Patterns = ()) -> AttachedProcess:
    """Attach probes to another process, which must have a CPython of version 3.10 or later.

        with fprobe.attach_to(4711, stat="libz:*") as process:
            time.sleep(1)
        for row in process.stat():
            print(row["name"], row["hits"])

    `stat`: patterns of functions to count and time; `trace`: of functions whose calls are recorded; `event`: definitions of
    probe events, lines p, r or f. Raises ValueError if all are empty. Attaching raises OSError, with the reason, if that is
    not possible, and warns of patterns that match nothing so far.
    """
    if pid == os.getpid():
        raise ValueError(f"process {pid} is this one; use fprobe.attach")
    return AttachedProcess(pid, stat, trace, event)


def _several(given: Patterns) -> tuple[str, ...]:
    return tuple(each for each in ([given] if isinstance(given, str) else given) if each)


__all__ = ["AttachedProcess", "attach_to"]
