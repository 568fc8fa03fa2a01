"""The columns of a file, version 1, and what its metadata says of their units, their host and their processes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fprobe.export.formats import EventFormat, FieldFormat

if TYPE_CHECKING:
    import pyarrow

VERSION = 1
PREFIX = "fprobe."
UNITS = {
    "kind": "call, event, stack or lost: what the row is",
    "time_ns": "nanoseconds since 1970-01-01 UTC, of the beginning; of the recording's clock if clock_offset_ns is null",
    "duration_ns": "nanoseconds from the entry to the return; null if no return was seen",
    "self_ns": "nanoseconds without those of recorded calls inside",
    "pid": "process",
    "tid": "thread",
    "comm": "name of the thread",
    "function": "name of the function; of an event: the place that was hit",
    "module": "the library or module that has it",
    "depth": "number of recorded calls that the call was made inside of",
    "stack": "the call and its callers, outermost first, separated by semicolons",
    "ax": "the register at the return; null if it was not recorded",
    "result": "the result, as text; null if it is not known",
    "calls": "number of calls that the row stands for; duration_ns is their sum",
    "event": "name of the event; its fields are in the column of that name",
    "fields": "fields of an event that has no column, as JSON",
    "lost": "number of records missing before time_ns in this thread; null if unknown",
    "instance": "the trace array, null for the top level",
}
_TYPES = {
    "time_ns": "int64", "duration_ns": "int64", "self_ns": "int64", "pid": "int32", "tid": "int32", "depth": "int32",
    "ax": "uint64", "calls": "int64", "lost": "int64", "result": "string", "fields": "string",
}  # fmt: skip
"""Types of columns; any other column is a text with few values."""
_PROC = Path("/proc")


class Origin(NamedTuple):
    """A process of a recording, as it is known when the file is finished."""

    pid: int
    command: Sequence[str] = ()
    started: int | None = None
    """Clock ticks after boot, as in /proc/PID/stat: with boot_id and pid, it tells processes apart."""


def origin_of(pid: int, command: Sequence[str] = ()) -> Origin:
    """A process, with what /proc says of it while it is there."""
    try:
        words = (_PROC / f"{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")[:-1]
        started = int((_PROC / f"{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return Origin(pid, command)
    return Origin(pid, command or words, started)


def wall_clock_offset() -> int:
    """What has to be added to CLOCK_MONOTONIC for the nanoseconds since 1970, from the closest of three readings."""
    found = []
    for _ in range(3):
        before, wall, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        found.append((after - before, wall - (before + after) // 2))
    return min(found)[1]


def description(clock: str, offset: int | None, processes: Iterable[Origin], lost: int) -> dict[str, str]:
    """The metadata of a file: texts by name."""
    from importlib.metadata import version

    system = os.uname()
    found = {
        "schema_version": str(VERSION),
        "writer": f"fprobe {version('fprobe')}",
        "host": system.nodename,
        "kernel": f"{system.sysname} {system.release} {system.machine}",
        "boot_id": (_PROC / "sys/kernel/random/boot_id").read_text().strip(),
        "clock": clock,
        "clock_offset_ns": json.dumps(offset),
        "processes": json.dumps([each._asdict() for each in processes]),
        "lost": str(lost),
        "units": json.dumps(UNITS),
    }
    return {f"{PREFIX}{name}": text for name, text in found.items()}


class Columns(NamedTuple):
    """The columns of a file. `of_events`: the names of the columns of events, whose numbers do not matter here."""

    of_events: Mapping[EventFormat, str]
    schema: pyarrow.Schema

    def of(self, event: EventFormat) -> str | None:
        """The name of the column of an event; None if it has none."""
        return self.of_events.get(event._replace(id=0))


def columns_for(formats: Iterable[EventFormat]) -> Columns:
    """The columns of every file, and one for each of these events. Its name is the event's, unless another column has it."""
    import pyarrow as pa

    text = pa.dictionary(pa.int32(), pa.string())
    fixed = [pa.field(name, getattr(pa, _TYPES[name])() if name in _TYPES else text) for name in UNITS]
    taken, found = set(UNITS), dict[EventFormat, str]()
    for event in dict.fromkeys(each._replace(id=0) for each in formats):
        name = event.name if event.name not in taken else f"{event.group}_{event.name}"
        if event.group not in ("ftrace", "module") and event.fields and name not in taken:
            found[event] = name
            taken.add(name)
    return Columns(found, pa.schema([*fixed, *(pa.field(name, struct_of(event)) for event, name in found.items())]))


def struct_of(event: EventFormat) -> Any:
    """The type of an event's column: a struct with its fields."""
    import pyarrow as pa

    return pa.struct([pa.field(each.name, _type_of(each)) for each in event.fields])


def _type_of(field: FieldFormat) -> Any:
    import pyarrow as pa

    if field.is_text:
        return pa.list_(pa.string()) if field.count > 1 and field.type.startswith("__data_loc") else pa.string()
    if field.is_number:
        return number_type(field)
    return pa.list_(pa.int64() if field.signed else pa.uint64())


def number_type(field: FieldFormat) -> Any:
    """The type of a plain number."""
    import pyarrow as pa

    return getattr(pa, f"{'' if field.signed else 'u'}int{field.size * 8}")()
