"""set_event: the enabled events, and tokens that enable and disable events by name."""

from __future__ import annotations

import errno
import os

from ftrace.events.registry import TraceEvent, event_registry, set_all_enabled
from ftrace.tracefs.nodes import Handle, Node, TextHandle

_BLANK = " \t\n\v\f\r"
_TOKEN_LIMIT = 127


def read_set_event() -> str:
    """`GROUP:EVENT` for each enabled event, the newest first."""
    return "".join(f"{event.group}:{event.name}\n" for event in reversed(event_registry.events()) if event.enabled)


def apply_token(token: str) -> None:
    """`[!]GROUP:EVENT`, `GROUP:*`, `*:EVENT`, `NAME` of a group or of events. Raises OSError(EINVAL) for no match."""
    name = token.removeprefix("!")
    chosen = [event for event in event_registry.events() if _matches(name, event)]
    if not chosen:
        raise OSError(errno.EINVAL, f"{name!r} names no event")
    set_all_enabled(chosen, not token.startswith("!"))


def _matches(name: str, event: TraceEvent) -> bool:
    group, colon, bare = name.partition(":")
    if not colon:
        return name in (event.group, event.name)
    return group in ("", "*", event.group) and bare in ("", "*", event.name)


def _take_token(text: str) -> int:
    """Apply the first token of `text`; how many characters that took."""
    start = len(text) - len(text.lstrip(_BLANK))
    end = next((index for index in range(start, len(text)) if text[index] in _BLANK), len(text))
    if end - start > _TOKEN_LIMIT:
        raise OSError(errno.EINVAL, f"a token of more than {_TOKEN_LIMIT} characters")
    if end > start:
        apply_token(text[start:end])
    return min(end + 1, len(text))


class SetEventFile(Node):
    """The file. Opened with O_TRUNC it disables every event."""

    def open(self, flags: int) -> Handle:
        """Open it. Raises OSError if an event cannot be disabled."""
        if flags & os.O_TRUNC and flags & os.O_ACCMODE != os.O_RDONLY:
            for event in event_registry.events():
                event.set_enabled(False)
        return TextHandle(read_set_event, _take_token)
