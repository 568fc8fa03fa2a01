"""Event probes, the lines e of dynamic_events, which are refused: with the kernel's errors, or else as not supported.

    e[:[GRP/][EVENT]] SYSTEM.EVENT [FETCHARGS] [if FILTER]

As kernel/trace/trace_eprobe.c, which does not attach them to the events of lines p and r.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

from ftrace.tracing.events.dynevent import LineType, NotThisType, argv_split, dyn_event_register, parse_event_name
from ftrace.tracing.events.probe_event import ProbeEvent
from ftrace.tracing.events.registry import event_registry
from ftrace.tracing.instances.error_log import error_log
from ftrace.tracing.probe_args.arguments import FIRST_ARGUMENT, MAX_ARGUMENTS
from ftrace.tracing.probe_args.errors import ErrorCode, Finding, ProbeError, error
from sandbox.process.once import once

_SUBSYSTEM = "event_probe"
_REASON = "Event probes are not supported"
_ATTACHED = 1
"""The index of the event to attach to among a line's words."""


class EventProbeLines(LineType):
    """The type of line e."""

    def create(self, line: str) -> None:
        """Raises NotThisType, or OSError: of a wrong line, or EOPNOTSUPP."""
        words = argv_split(line)
        if not words:
            return
        if words[0][0] != "e" or len(words) < 2:
            raise NotThisType
        try:
            _check(words)
        except ProbeError as wrong:
            error_log.add_probe_error(_SUBSYSTEM, words, wrong)
            raise
        error_log.add(_SUBSYSTEM, _REASON, " ".join(words), 0)
        raise OSError(errno.EOPNOTSUPP, f"{_REASON}: define a kprobe or fprobe event with the arguments instead")


def _check(words: Sequence[str]) -> None:
    """Check the names, the number of arguments, and that there is an event to attach to. Raises ProbeError."""
    head, colon, name = words[0].partition(":")
    if colon:
        parse_event_name(name, len(head) + 1)
    group, event = _attached(words[_ATTACHED])
    end = words.index("if", FIRST_ARGUMENT) if "if" in words[FIRST_ARGUMENT:] else len(words)
    if end - FIRST_ARGUMENT > MAX_ARGUMENTS:
        raise ProbeError(errno.E2BIG)
    found = event_registry.find(group, event)
    if found is None or (isinstance(found, ProbeEvent) and found.probes[0].kind in "pr"):
        raise error(ErrorCode.BAD_ATTACH_EVENT, 0, _ATTACHED, errno.ENODEV)


def _attached(word: str) -> tuple[str, str]:
    """The group and the event to attach to. Raises ProbeError."""
    wrong: tuple[Finding, ...] = ()
    try:
        group, event = parse_event_name(word, 0)
        if group is not None and event is not None:
            return group, event
    except ProbeError as refused:
        wrong = refused.at_word(_ATTACHED).findings
    # The kernel logs both.
    raise ProbeError(errno.EINVAL, *wrong, Finding(ErrorCode.NO_EVENT_INFO, 0, _ATTACHED))


@once
def register_event_probes() -> None:
    """Register the lines e, so that dynamic_events reports why they are refused."""
    dyn_event_register(EventProbeLines())
