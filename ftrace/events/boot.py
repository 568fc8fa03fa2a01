"""Start-up definitions: the text of the kernel's boot parameter kprobe_event=.

    p:reads,vfs_read,count=%dx;r:done,vfs_read,$retval

`;` separates definitions, and each `,` stands for a space. A definition that fails, since its program is not loaded yet, is
tried again at every load. Each event is enabled as soon as it is defined. Definitions that never succeeded are reported at exit.
"""

from __future__ import annotations

import atexit
import sys
from functools import cache

from ftrace.events import dynevent
from ftrace.events.error_log import error_log
from ftrace.events.probe_event import Probe
from sandbox.loading.module import Module, ModuleState, register_module_notifier

_pending: dict[str, str] = {}
"""Definitions that have failed so far, and why."""


def definitions(text: str) -> list[str]:
    """The definition lines in the parameter's text."""
    return [line.replace(",", " ") for line in text.split(";") if line.replace(",", " ").strip()]


def setup_boot_events(text: str) -> None:
    """Define and enable the events in `text`, now or when their programs are loaded. Raises nothing: see `undefined`."""
    for line in definitions(text):
        _pending[line] = _define(line)
    _forget_defined()
    if _pending:
        _watch()


def undefined() -> dict[str, str]:
    """The definitions that have failed so far, with their errors."""
    return dict(_pending)


def _define(line: str) -> str:
    """Define and enable a line's event. Returns the error; empty if there was none."""
    before = set(dynevent.dynamic_events())
    try:
        dynevent.create_dyn_event(line)
        for made in dynevent.dynamic_events():
            if made not in before and isinstance(made, Probe):
                made.event.set_enabled(True)
    except OSError as failed:
        return failed.strerror or str(failed)
    return ""


def _forget_defined() -> None:
    for line in [line for line, reason in _pending.items() if not reason]:
        del _pending[line]


@cache
def _watch() -> None:
    register_module_notifier(_module_event)
    atexit.register(_report)


def _module_event(event: ModuleState, _module: Module) -> None:
    if event is not ModuleState.COMING or not _pending:
        return
    with error_log.muted():  # the first failure has been logged
        for line in list(_pending):
            _pending[line] = _define(line)
    _forget_defined()


def _report() -> None:
    for line, reason in _pending.items():
        print(f"fprobe: never defined: {line!r}: {reason}", file=sys.stderr)
