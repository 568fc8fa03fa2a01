"""set_event: lists the enabled events; tokens written to it enable and disable events by name."""

from __future__ import annotations

import errno
import os
from functools import partial

from ftrace.events.registry import TraceEvent, event_registry, set_all_enabled
from ftrace.events.trace_array import TraceArray
from ftrace.tracefs.nodes import Handle, Node, TextHandle

_BLANK = " \t\n\v\f\r"
_END = _BLANK + "\0"
_TOKEN_LIMIT = 127


def enabled_events(array: TraceArray) -> str:
    """A line `GROUP:EVENT` for each event that is enabled in a trace array, newest definition first.

    As s_next() in kernel/trace/trace_events.c: an event whose triggers need its hits is listed.
    """
    events = reversed(event_registry.events())
    return "".join(f"{event.group}:{event.name}\n" for event in events if event.file_in(array).is_on)


def apply_token(token: str, array: TraceArray) -> None:
    """Enable the events that a token names, or disable them if it begins with `!`. Raises OSError(EINVAL) if it names none.

    A token is `GROUP:EVENT`, `GROUP:*`, `*:EVENT`, or the name of a group or of events.
    """
    name = token.removeprefix("!")
    chosen = [event.file_in(array) for event in event_registry.events() if _matches(name, event)]
    if not chosen:
        raise OSError(errno.EINVAL, f"{name!r} names no event")
    set_all_enabled(chosen, not token.startswith("!"))


def _matches(name: str, event: TraceEvent) -> bool:
    group, colon, bare = name.partition(":")
    if not colon:
        return name in (event.group, event.name)
    return group in ("", "*", event.group) and bare in ("", "*", event.name)


def _take_token(array: TraceArray, text: str) -> int:
    """Apply the first token of `text`. Returns the number of characters that were consumed."""
    array.is_expanded = True
    start = len(text) - len(text.lstrip(_BLANK))
    end = next((index for index in range(start, len(text)) if text[index] in _END), len(text))
    if end - start > _TOKEN_LIMIT:
        raise OSError(errno.EINVAL, f"a token has {end - start} characters; the maximum is {_TOKEN_LIMIT}")
    if end > start:
        apply_token(text[start:end], array)
    return min(end + 1, len(text))


class SetEventFile(Node):
    """set_event of a trace array. Opening it for writing with O_TRUNC disables all events of the trace array."""

    def __init__(self, array: TraceArray) -> None:
        self._array = array

    def open(self, flags: int) -> Handle:
        """Open the file. Raises OSError if an event cannot be disabled."""
        if flags & os.O_TRUNC and flags & os.O_ACCMODE != os.O_RDONLY:
            for event in event_registry.events():
                event.file_in(self._array).set_enabled(False)
        return TextHandle(lambda: enabled_events(self._array), partial(_take_token, self._array))
