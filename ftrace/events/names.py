"""Parse, generate and check the names of events and their groups."""

from __future__ import annotations

import re

from ftrace.probe_args.errors import ErrorCode, error
from ftrace.probe_args.types import is_good_name

MAX_EVENT_NAME_LEN = 64
"""The maximum length of a group's or event's name with its NUL, in bytes."""
_GROUP = re.compile(r"[A-Za-z_-][A-Za-z0-9_-]*")


def parse_event_name(text: str, offset: int) -> tuple[str | None, str | None]:
    """The group and the event in `[GROUP/][EVENT]`; None for a part that is not given.

    `offset`: of `text` in its word. Raises ProbeError.
    """
    separator = "/" if "/" in text else "."
    group, mark, event = text.partition(separator)
    if not mark:
        group, event = "", text
    else:
        _check_group(group, offset)
        offset += len(group) + 1
    if not event:
        if mark:
            return group, None
        raise error(ErrorCode.NO_EVENT_NAME, offset)
    if len(event) >= MAX_EVENT_NAME_LEN:
        raise error(ErrorCode.EVENT_TOO_LONG, offset)
    if not is_good_name(event):
        raise error(ErrorCode.BAD_EVENT_NAME, offset)
    return group or None, event


def _check_group(group: str, offset: int) -> None:
    if not group:
        raise error(ErrorCode.NO_GROUP_NAME, offset)
    if len(group) >= MAX_EVENT_NAME_LEN:
        raise error(ErrorCode.GROUP_TOO_LONG, offset)
    if not _GROUP.fullmatch(group):
        raise error(ErrorCode.BAD_GROUP_NAME, offset)


def sanitized(name: str) -> str:
    """A generated event name, cut and cleaned as in the kernel. It may still not be an identifier."""
    name = name[: MAX_EVENT_NAME_LEN - 1]
    return name[:1] + re.sub(r"[:.*]", "_", name[1:])
