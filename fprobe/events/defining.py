"""Defining probe events through the files of tracefs; errors with what the error log says of them."""

from __future__ import annotations

import errno
from collections.abc import Callable

from fprobe.tracefs import tracefs
from ftrace.events import dynevent
from ftrace.events.error_log import errors_heard
from ftrace.events.probe_event import Probe


def define(definition: str) -> list[Probe]:
    """Define an event. Returns its probe. Raises OSError with a caret under the error."""
    before = set(dynevent.dynamic_events())
    write("dynamic_events", definition, append=True)
    made = [each for each in dynevent.dynamic_events() if each not in before]
    probes = [each for each in made if isinstance(each, Probe)]
    if not probes:
        raise OSError(errno.EINVAL, f"{definition!r} does not define a probe; give a line p, r or f")
    return probes


def write(path: str, text: str, append: bool = False) -> None:
    explained(lambda: tracefs.write(path, text, append=append), text)


def explained(call: Callable[[], None], command: str) -> None:
    """Make the call. If it raises OSError, add what error_log reports for `command`: the message, the text, and a caret."""
    with errors_heard() as found:
        try:
            call()
        except OSError as refused:
            number, reason = refused.errno or errno.EINVAL, refused.strerror or str(refused)
            shown, position = command.strip(), None
            if found:
                reason, shown, position = found[0].message, found[0].command, found[0].position
            caret = f"\n  {' ' * position}^" if position is not None else ""
            raise OSError(number, f"{reason}\n  {shown}{caret}") from None
