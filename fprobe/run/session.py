"""The file of counts and the journal, which a launcher shares with the program that it runs.

Both are memory files of the launcher. A process of the program opens them through the launcher's /proc directory, and keeps
no descriptor open.

The file of counts begins with a header of one page, followed by `PARTS` parts of `PART` bytes, one for each process
(`ftrace.hit.call_table`), and by the memory for ring buffers (`fprobe.run.tracee.defining`). It is sparse. Read it with pread,
since reading a hole through a mapping allocates memory.

The journal has one JSON object on each line. The first has the settings; processes of the program append the others.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sandbox.process.fork import give_way

VARIABLE = "FPROBE_RUN"
"""Environment variable: the launcher's process id and descriptors, as PID:COUNTS:JOURNAL; see `address_of`."""
PYTHONPATH = "FPROBE_RUN_PYTHONPATH"
"""Environment variable: PYTHONPATH before the launcher changed it; unset if it was unset."""

HEADER = 4096
PARTS = 256
"""Maximum number of processes."""
ROWS_AT = 4096
"""Offset of the rows in a part."""
ROWS = 2048
STRIDE = 4 << 20
"""Bytes of a thread's row of cells."""
MAPS_AT = ROWS_AT + ROWS * STRIDE
MAPS = 16 << 30
"""Bytes of address space for the maps of native handlers, tables of values and of stacks."""
CALLS_AT = MAPS_AT + MAPS
CALL_PAGES = 1 << 18
"""The pool of the ring buffer of calls: 1 GiB."""
CALLS_KB = 12 << 10
"""What a thread's calls may take of it."""
CALLS_ORDER = 4
"""A sub-buffer has 64 KiB, since a record has up to two paths."""
_CALLS = 2 << 30
PART = CALLS_AT + _CALLS

MAGIC = b"fproberu"
_HEADER = struct.Struct("<8sQ")
NEXT_AT = 8
"""Offset in the header of the number of the next free part."""
NEXT_RING_AT = 16
"""Offset in the header of the number of the next free ring buffer memory."""
_SHOWN_AT = 24
"""Offset in the header of 1 while the launcher shows on the terminal what is done before the program begins."""
_SHOWN = 1.0
"""Seconds in which the launcher erases that."""
FORKED_AT = 32
"""Offset in the header of the number of forks."""
COMMS_AT = HEADER + PARTS * PART
"""Offset of the table of thread names."""
RINGS_AT = COMMS_AT + (1 << 20)
RING = 32 << 30
"""Bytes of address space for the ring buffer of a process; twice the largest pool of pages."""
_SIZE = RINGS_AT + PARTS * RING
_PART = struct.Struct("<3Q")
FILES = struct.Struct("<c4i")
"""The report of a process that was attached to: FILES_MADE, the thread that reports, and its descriptors of counts, journal and
the pipe to write to."""
FILES_MADE, OPENED, LEAVE = b"F", b"O", b"L"
"""The first byte of that report; what the attacher writes into the pipe when it has opened them, and to detach."""
_NUMBER = struct.Struct("<Q")
_OBJECT = struct.Struct("<64sQ")
"""An object of an attacher: its key and its size; the bytes follow. One without a key is the last."""
INSTANCE = "fprobe.run"
"""The trace instance in which probe events are recorded, to keep them apart from the program's own tracing."""


class Settings(NamedTuple):
    """The launcher's requests. `patterns`: the functions to count and time; `by`, `measures`: as in `ftrace.hit.account`.

    `with_events`: also record every entry and return. `stacks`: patterns of functions whose calls are counted by stack.
    `native`: a file and the names of native handlers in it; `handled`: patterns of functions that get these handlers.
    `events`: definitions of probe events. `perf_map`: write /tmp/perf-PID.map.
    `children`: processes that the program forks count, too.
    `mount`: the directory on which the first process mounts its tracefs.
    `triggers`: triggers of each of the events; what their `hist` files show is in the journal at the end.
    `filter`: of each of the events; `buffer_kb`: of each thread, 0 for the default.
    `strings`: with events, also record what pointers lead to.
    `values`: definitions of events that are only counted, by the hist trigger `value_trigger` (`fprobe.run.values`).
    `selected`: patterns of functions of whose calls only those count that answer `question`: the arguments, the filter and
    what tells calls apart (`fprobe.events.selections`).
    `stack_values`: definitions of events whose calls that pass `stack_filter` are counted by stack, with the sum of `stack_sum`.
    """

    patterns: tuple[str, ...] = ()
    by: int = 0
    with_events: bool = False
    stacks: tuple[str, ...] = ()
    handled: tuple[str, ...] = ()
    native: str = ""
    events: tuple[str, ...] = ()
    perf_map: bool = False
    children: bool = True
    triggers: tuple[str, ...] = ()
    filter: str = ""
    buffer_kb: int = 0
    mount: str = ""
    measures: int = 0
    strings: bool = True
    values: tuple[str, ...] = ()
    value_trigger: str = ""
    selected: tuple[str, ...] = ()
    question: tuple[Sequence[str], str, str] = ((), "", "")
    stack_values: tuple[str, ...] = ()
    stack_filter: str = ""
    stack_sum: str = ""

    @property
    def arms(self) -> bool:
        """Whether there is anything to probe."""
        asked = self.patterns, self.stacks, self.handled, self.events, self.values, self.selected, self.stack_values
        return any(asked)


_COUNTS, _JOURNAL = "fprobe-run", "fprobe-run-journal"
"""Names of the memory files."""


class PartHeader(NamedTuple):
    """The owner of a part. `parent`: the number of the part of the process that forked it, or None.

    `has_lost_maps`: the contents of its maps are not known.
    """

    number: int
    pid: int
    parent: int | None
    has_lost_maps: bool


def create(settings: Settings) -> tuple[int, int]:
    """Create a file of counts and a journal, and return their descriptors. Raises OSError."""
    counts = memory_file(_COUNTS)
    os.truncate(counts, _SIZE)
    os.pwrite(counts, _HEADER.pack(MAGIC, 0), 0)
    journal = memory_file(_JOURNAL)
    os.write(journal, json.dumps(settings._asdict()).encode() + b"\n")
    return counts, journal


def memory_file(name: str) -> int:
    """A descriptor of a new memory file. Raises OSError."""
    descriptor = above_standard(os.memfd_create(name, os.MFD_CLOEXEC))
    os.fchmod(descriptor, 0o600)
    return descriptor


def above_standard(descriptor: int) -> int:
    """The descriptor, or a copy above 2 in its place if standard descriptors are closed: else output would go to it."""
    if descriptor > 2:
        return descriptor
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(descriptor)


def address_of(counts: int, journal: int, thread: int | None = None) -> str:
    """The value of `VARIABLE`. `thread`: the thread of this process whose descriptors they are, if not all threads share them."""
    return f"{os.getpid()}{f'/task/{thread}' * (thread is not None)}:{counts}:{journal}"


def open_counts(address: str) -> int:
    """Open the file of counts in a process of the program. Raises OSError if the launcher has ended."""
    pid, counts, _ = address.split(":")
    return _opened(pid, counts, _COUNTS, os.O_RDWR)


def _opened(pid: str, number: str, name: str, flags: int) -> int:
    """Open the memory file of a process. Raises OSError, also if the process has closed it and opened another one there."""
    path = f"/proc/{pid}/fd/{number}"
    if not os.readlink(path).startswith(f"/memfd:{name} "):  # noqa: PTH115  # pathlib need not be there
        raise OSError(errno.EBADF, "the descriptor is another file's now", path)
    return os.open(path, flags | os.O_CLOEXEC)


def settings(address: str) -> Settings:
    """Read the launcher's requests. Raises OSError if the launcher has ended."""
    pid, _, journal = address.split(":")
    descriptor = _opened(pid, journal, _JOURNAL, os.O_RDONLY)
    try:
        text = os.pread(descriptor, 1 << 20, 0).split(b"\n", 1)[0]
    finally:
        os.close(descriptor)
    return Settings(**json.loads(text))


def show_progress(counts: int, *, is_shown: bool) -> None:
    """The launcher shows progress on the terminal, or has erased it."""
    os.pwrite(counts, _NUMBER.pack(is_shown), _SHOWN_AT)


def wait_for_terminal(address: str) -> None:
    """Wait until the launcher has erased the progress that it shows. It never does, if it is stopped or has ended."""
    try:
        counts = open_counts(address)
    except OSError:
        return
    try:
        end = time.monotonic() + _SHOWN
        while any(os.pread(counts, _NUMBER.size, _SHOWN_AT)) and time.monotonic() < end:
            time.sleep(0.002)
    finally:
        os.close(counts)


def send_objects(counts: int, objects: Mapping[str, bytes]) -> None:
    """Append compiled objects to the file of counts, by key. Raises OSError."""
    parts = [_OBJECT.pack(key.encode(), len(data)) + data for key, data in objects.items()]
    os.pwrite(counts, b"".join(parts) + _OBJECT.pack(b"", 0), _SIZE)


def take_objects(counts: int) -> dict[str, bytes]:
    """The objects that were sent. They take no memory of the file afterwards."""
    data, at, found = os.pread(counts, os.fstat(counts).st_size - _SIZE, _SIZE), 0, dict[str, bytes]()
    while at + _OBJECT.size <= len(data):
        key, size = _OBJECT.unpack_from(data, at)
        if not key.strip(b"\0"):
            break
        at += _OBJECT.size
        found[key.decode()] = data[at : at + size]
        at += size
    os.truncate(counts, _SIZE)
    return found


def note(address: str, **entry: Any) -> None:
    """Append an entry to the journal; does nothing if the launcher has ended."""
    give_way()
    pid, _, journal = address.split(":")
    try:
        descriptor = _opened(pid, journal, _JOURNAL, os.O_WRONLY | os.O_APPEND)
    except OSError:
        return
    try:
        os.write(descriptor, json.dumps({"pid": os.getpid(), **entry}).encode() + b"\n")
    finally:
        os.close(descriptor)


def entries(journal: int) -> Iterator[dict[str, Any]]:
    """The entries that processes of the program have appended to the journal."""
    yield from entries_since(journal, 0)[0]


def entries_since(journal: int, offset: int) -> tuple[list[dict[str, Any]], int]:
    """The complete entries from this offset on (0: all), and the offset of what follows."""
    data = os.pread(journal, os.fstat(journal).st_size - offset, offset)
    lines = data.split(b"\n")
    found = [json.loads(line) for line in lines[0 if offset else 1 : -1]]
    return found, offset + len(data) - len(lines[-1])


def parts(counts: int) -> list[PartHeader]:
    """The parts that processes have taken."""
    taken = min(struct.unpack("<Q", os.pread(counts, 8, NEXT_AT))[0], PARTS)
    found = []
    for number in range(taken):
        pid, parent, lost = _PART.unpack(os.pread(counts, _PART.size, HEADER + number * PART))
        if pid:
            found.append(PartHeader(number, pid, parent - 1 if parent else None, bool(lost)))
    return found


def processes_not_counted(counts: int) -> int:
    """Number of processes that found no free part."""
    return int(max(0, struct.unpack("<Q", os.pread(counts, 8, NEXT_AT))[0] - PARTS))


def forks(counts: int) -> int:
    """Number of processes that processes with probes have forked, and in which counting goes on."""
    return int(_NUMBER.unpack(os.pread(counts, _NUMBER.size, FORKED_AT))[0])


def rings_taken(counts: int) -> int:
    """Number of processes that have taken memory for a ring buffer."""
    return int(_NUMBER.unpack(os.pread(counts, _NUMBER.size, NEXT_RING_AT))[0])


def take_ring(counts: int) -> int:
    """Take the next free memory for a ring buffer and return its number. Raises OSError(ENOSPC) if none is left.

    Unlocks explicitly, since a mapping keeps the lock after the descriptor is closed.
    """
    fcntl.flock(counts, fcntl.LOCK_EX)
    try:
        number = rings_taken(counts)
        if number == PARTS:
            raise OSError(errno.ENOSPC, f"{PARTS} processes have recorded events, which is the maximum")
        os.pwrite(counts, _NUMBER.pack(number + 1), NEXT_RING_AT)
        return number
    finally:
        fcntl.flock(counts, fcntl.LOCK_UN)
