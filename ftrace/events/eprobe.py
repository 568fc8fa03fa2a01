"""Event probes (lines e): refused, with the reason in error_log."""

from __future__ import annotations

import errno
from functools import cache

from ftrace.events.dynevent import LineType, NotThisType, argv_split, dyn_event_register
from ftrace.events.error_log import error_log

_REASON = "Event probes are not supported"


class EprobeLines(LineType):
    """`e[:[GRP/][EVENT]] SYSTEM.EVENT [FETCHARGS]`."""

    def create(self, line: str) -> None:
        """Raises NotThisType, or OSError(EOPNOTSUPP) for an event probe."""
        words = argv_split(line)
        if not words:
            return
        if words[0][0] != "e" or len(words) < 2:
            raise NotThisType
        error_log.add("event_probe", _REASON, " ".join(words), 0)
        raise OSError(errno.EOPNOTSUPP, f"{_REASON}: define a kprobe or fprobe event with the arguments instead")


@cache
def register_eprobe_events() -> None:
    """Register the lines e, so that dynamic_events reports why they are refused."""
    dyn_event_register(EprobeLines())
