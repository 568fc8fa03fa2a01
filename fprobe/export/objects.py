"""Records as objects for JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fprobe.export.source import Source


def objects(trace: Source) -> Iterator[dict[str, Any]]:
    """An object for each record, in order of time: event, time, thread, and the event's fields by name."""
    for record in trace.records():
        tid = record.common.pid
        event = trace.formats.get(record.common.type)
        name = {"event": event.name, "group": event.group} if event else {"event": None, "type": record.common.type}
        common = {"time_ns": record.stamp, "cpu": record.slot, "tid": tid, "comm": trace.comm(tid), "lost": record.lost}
        yield name | common | {"fields": event.values(record.data) if event else {}}
