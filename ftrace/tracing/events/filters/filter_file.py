"""Read and write the `filter` files of events and of groups of events."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import Protocol

from ftrace.tracing.events.filters.errors import SUBSYSTEM, FilterError, FilterErrorCode
from ftrace.tracing.events.filters.fields import EventField
from ftrace.tracing.events.filters.parser import SPACES, Filter, parse_filter

MAX_WRITE = 4096
"""A write must be shorter, in bytes."""
GROUP_HELP = (
    "### global filter ###\n"
    "# Use this to set filters for multiple events.\n"
    "# Only events with the given fields will be affected.\n"
    "# If no events are modified, an error message will be displayed here\n"
)
"""The text of a group's filter file."""


class ErrorLog(Protocol):
    """The interface of the log for refused filters."""

    def add(self, subsystem: str, message: str, command: str, position: int) -> None:
        """Append an entry, with a caret under character `position` of the command."""


class EventFilter:
    """The filter of one event.

    `apply` is called with each new filter, and with None when the filter is removed.
    """

    def __init__(
        self, fields: Sequence[EventField], log: ErrorLog, apply: Callable[[Filter | None], None] = lambda _: None
    ) -> None:
        self.filter: Filter | None = None
        self._fields = tuple(fields)
        self._log = log
        self._apply = apply
        self._text = "none"

    def read(self) -> str:
        """The text of the file: the filter, `none`, or the last filter's error."""
        return f"{self._text}\n"

    def write(self, text: str) -> None:
        """Set the filter; `0` removes it.

        Raises FilterError (an OSError), with an entry in error_log. Then the event has no filter.
        """
        text = checked(text)
        if text.strip(SPACES) == "0":
            self.clear()
            return
        text = text.rstrip(SPACES)
        try:
            self._set(parse_filter(text, self._fields), text)
        except FilterError as error:
            self._refuse(text, error)
            raise

    def write_as_group(self, text: str) -> None:
        """Set the filter of the event's group. An error is logged; nothing is raised."""
        try:
            self._set(parse_filter(text, self._fields), text)
        except FilterError:
            self._refuse(text, FilterError(FilterErrorCode.BAD_SUBSYS_FILTER))

    def clear(self) -> None:
        """Remove the filter."""
        self._set(None, "none")

    def _set(self, filter_: Filter | None, text: str) -> None:
        self._apply(filter_)
        self.filter, self._text = filter_, text

    def _refuse(self, text: str, error: FilterError) -> None:
        self._set(None, error.report(text))
        self._log.add(SUBSYSTEM, error.code.value, text, error.position)


def write_group_filter(filters: Sequence[EventFilter], text: str) -> None:
    """Set the filter of every event of a group, as apply_subsystem_event_filter(); `0` removes all.

    Events that the filter does not fit lose their filter and log the error. Raises OSError(ENODEV) if there is no event.
    """
    text = checked(text)
    if not filters:
        raise OSError(errno.ENODEV, "the group has no events to filter; define one first")
    for filter_ in filters:
        if text.strip(SPACES) == "0":
            filter_.clear()
        else:
            filter_.write_as_group(text.rstrip(SPACES))


def checked(text: str) -> str:
    """What a write says: up to its first NUL. Raises OSError(EINVAL) if the write is too long."""
    if len(text.encode("utf-8", "surrogateescape")) >= MAX_WRITE:
        raise OSError(errno.EINVAL, f"the filter has {len(text)} characters; the maximum is {MAX_WRITE - 1} bytes")
    return text.partition("\0")[0]
