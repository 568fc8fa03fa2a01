"""What a launcher shares with the program that it runs: a file of counts, and a journal.

Both are memory files of the launcher. A process of the program opens them in the launcher's /proc directory and keeps no
descriptor.
The file of counts begins with a header of one page; `PARTS` parts of `PART` bytes follow, one for each process, as in
`ftrace.hit.call_table`. It is sparse: read it with pread, since reading a hole through a mapping allocates it. The journal has
one JSON object on a line; writers append whole lines. Behind the parts of the file of counts is the memory that events are
recorded into: `fprobe.run.rings`.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

VARIABLE = "FPROBE_RUN"
"""Environment variable: the launcher's process and descriptors, as PID:COUNTS:JOURNAL."""
PYTHONPATH = "FPROBE_RUN_PYTHONPATH"
"""Environment variable: what PYTHONPATH was before the launcher changed it; missing if there was none."""

HEADER = 4096
PARTS = 256
"""Processes that can be counted."""
ROWS_AT = 4096
"""Offset of the rows in a part."""
ROWS = 2048
STRIDE = 8 << 20
"""Bytes of a thread's row: cells, then its ring of events."""
EVENTS_AT, EVENT = 4 << 20, 32
EVENTS = (STRIDE - EVENTS_AT) // EVENT
"""Events that a thread's ring holds."""
STACKS_AT = ROWS_AT + ROWS * STRIDE
STACKS = 1 << 16
"""Different stacks of a process that are counted: of each the calls and their ticks, 8 bytes each."""
MAPS_AT = STACKS_AT + STACKS * 16
MAPS = 16 << 30
"""Bytes of address space for the maps of native handlers."""
PART = MAPS_AT + MAPS

MAGIC = b"fproberu"
_HEADER = struct.Struct("<8sQ")
NEXT_AT = 8
"""Offset in the header of the number of the next free part."""
NEXT_RING_AT = 16
"""Offset in the header of the number of the next free memory for a ring buffer."""
COMMS_AT = HEADER + PARTS * PART
"""Offset of the names of threads that have recorded events."""
RINGS_AT = COMMS_AT + (1 << 20)
RING = 32 << 30
"""Bytes of address space for the ring buffer of a process: its pool of pages is not larger than half of it."""
_SIZE = RINGS_AT + PARTS * RING
_PART = struct.Struct("<2Q")


class Settings(NamedTuple):
    """What the launcher asks for. `patterns`: the functions to count and time; `by`: see `ftrace.hit.call_table`.

    `with_events`: keep every entry and return, too; `stacks`: patterns of functions whose callers' stacks are kept;
    `handled`: of functions that get the handlers `native`, a file and names in it.
    """

    patterns: tuple[str, ...] = ()
    by: int = 0
    with_events: bool = False
    stacks: tuple[str, ...] = ()
    handled: tuple[str, ...] = ()
    native: str = ""
    events: tuple[str, ...] = ()


class PartHeader(NamedTuple):
    """Whose part it is. `parent`: the number of the part of the process that forked, or None."""

    number: int
    pid: int
    parent: int | None


def create(settings: Settings) -> tuple[int, int]:
    """Descriptors of a new file of counts and of a new journal. Raises OSError."""
    counts = _memory_file("fprobe-run")
    os.truncate(counts, _SIZE)
    os.pwrite(counts, _HEADER.pack(MAGIC, 0), 0)
    journal = _memory_file("fprobe-run-journal")
    os.write(journal, json.dumps(settings._asdict()).encode() + b"\n")
    return counts, journal


def _memory_file(name: str) -> int:
    """Its descriptor is none of the standard ones, even if those are closed: the report would go there."""
    made = os.memfd_create(name, os.MFD_CLOEXEC)
    if made > 2:
        return made
    try:
        return fcntl.fcntl(made, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(made)


def address_of(counts: int, journal: int) -> str:
    """What the program finds in `VARIABLE`."""
    return f"{os.getpid()}:{counts}:{journal}"


def open_counts(address: str) -> int:
    """A descriptor of the file of counts, in a process of the program. Raises OSError if the launcher has ended."""
    pid, counts, _ = address.split(":")
    return os.open(f"/proc/{pid}/fd/{counts}", os.O_RDWR | os.O_CLOEXEC)


def settings(address: str) -> Settings:
    """What the launcher asks for. Raises OSError if it has ended."""
    pid, _, journal = address.split(":")
    descriptor = os.open(f"/proc/{pid}/fd/{journal}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = os.pread(descriptor, 1 << 20, 0).split(b"\n", 1)[0]
    finally:
        os.close(descriptor)
    return Settings(**json.loads(text))


def note(address: str, **entry: Any) -> None:
    """Append to the journal; nothing happens if the launcher has ended."""
    pid, _, journal = address.split(":")
    try:
        descriptor = os.open(f"/proc/{pid}/fd/{journal}", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.write(descriptor, json.dumps({"pid": os.getpid(), **entry}).encode() + b"\n")
    finally:
        os.close(descriptor)


def entries(journal: int) -> Iterator[dict[str, Any]]:
    """What processes of the program have appended to the journal."""
    data = os.pread(journal, os.fstat(journal).st_size, 0)
    for line in data.split(b"\n")[1:-1]:
        yield json.loads(line)


def parts(counts: int) -> list[PartHeader]:
    """The parts that processes have taken."""
    taken = min(struct.unpack("<Q", os.pread(counts, 8, NEXT_AT))[0], PARTS)
    found = []
    for number in range(taken):
        pid, parent = _PART.unpack(os.pread(counts, _PART.size, HEADER + number * PART))
        if pid:
            found.append(PartHeader(number, pid, parent - 1 if parent else None))
    return found


def processes_not_counted(counts: int) -> int:
    """Processes that came when no part was left."""
    return int(max(0, struct.unpack("<Q", os.pread(counts, 8, NEXT_AT))[0] - PARTS))
