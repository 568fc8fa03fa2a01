"""Start-up definitions: the text of the kernel's boot parameter kprobe_event=.

    p:reads,vfs_read,count=%dx;r:done,vfs_read,$retval

`;` separates definitions, and each `,` stands for a space. A definition that fails, since its code is not loaded yet, is tried
again at every load. When all have been tried, the events that they defined are enabled. Definitions that never succeeded, and
probes whose code was never loaded, are reported at exit.
"""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

from ftrace.tracing.events import dynevent
from ftrace.tracing.events.event_mutex import events_locked
from ftrace.tracing.events.probe_event import Probe
from ftrace.tracing.instances.error_log import error_log
from sandbox.loading.module import Module, ModuleState, register_module_notifier
from sandbox.process import fork
from sandbox.symbols.names import names_owner

T = TypeVar("T")
_pending: dict[str, str] = {}
"""Definitions that have failed so far, and why."""
_made: list[Probe] = []
"""The probes that were defined."""
_trying = fork.renew(threading.Lock())
_due = False
_tried_by = 0
"""The thread that tries them now; 0 if none does."""


def definitions(text: str) -> list[str]:
    """The definition lines in the parameter's text."""
    return [line.replace(",", " ") for line in text.split(";") if line.replace(",", " ").strip()]


def setup_boot_events(text: str) -> None:
    """Define and enable the events in `text`, now or when their code is loaded. Raises nothing: see `undefined`.

    The order is that of setup_boot_kprobe_events(): a line can delete what an earlier one has defined.
    """
    _pending.update(dict.fromkeys(definitions(text), ""))
    _report_at_exit()
    _try_pending()
    if _pending:
        _watch()


def try_again() -> None:
    """Try the definitions that have failed so far: code was loaded. Raises nothing.

    Registering a probe may load a library, and so come here again: then there is nothing to do.
    """
    global _due, _tried_by
    if _tried_by == threading.get_ident():
        return
    _due = True
    while _due and _pending and _trying.acquire(blocking=False):
        try:
            _due, _tried_by = False, threading.get_ident()
            with error_log.muted():  # the first failure has been logged
                _try_pending()
        finally:
            _tried_by = 0
            _trying.release()


def awaits_library() -> bool:
    """Whether a definition that has failed so far names its function as `LIBRARY:FUNCTION`."""
    return any(names_owner(word) for line in _pending for word in line.split()[1:2])


def undefined() -> dict[str, str]:
    """The definitions that have failed so far, with their errors."""
    return dict(_pending)


def _try_pending() -> None:
    """Try each pending definition, then enable the events that were defined."""
    with events_locked():  # what other threads define is not ours
        before = set(dynevent.dynamic_events())
        for line in list(_pending):
            _pending[line] = _reason(dynevent.create_dyn_event, line)
        ours = [made for made in dynevent.dynamic_events() if made not in before and isinstance(made, Probe)]
        _made.extend(ours)
        for made in ours:
            _reason(made.event.set_enabled, True)
    for line in [line for line, reason in _pending.items() if not reason]:
        del _pending[line]


def _reason(call: Callable[[T], None], argument: T) -> str:
    """Why a call failed; empty if it did not."""
    try:
        call(argument)
    except OSError as failed:
        return failed.strerror or str(failed)
    return ""


def _watch() -> None:
    """Have its effect once, whichever threads call it."""
    register_module_notifier(_module_event)


def _report_at_exit() -> None:
    """Have its effect once, whichever threads call it."""
    atexit.unregister(_report)
    atexit.register(_report)


def _module_event(event: ModuleState, _module: Module) -> None:
    if event is ModuleState.COMING:
        try_again()


def _report() -> None:
    for line, reason in _pending.items():
        print(f"fprobe: never defined: {line!r}: {reason}", file=sys.stderr)
    defined = set(dynevent.dynamic_events())
    for probe in _made:
        if probe in defined and (reason := probe.absence):
            print(f"fprobe: {probe.name} was attached to nothing: {reason}", file=sys.stderr)
