"""A recording outlives the program: the command runs in a child, whose records the parent reads if it ends unexpectedly.

The pages of the child's ring buffers are in memory that both share. After them the child writes, when the recording begins, what
the trace.dat has besides the records.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import pickle
import resource
import struct
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from fprobe.cli.interrupting import ctrl_c
from fprobe.run.ending import end_like
from fprobe.run.launcher.launching import Program
from ftrace.hit.ring_buffer import comms
from ftrace.hit.ring_buffer.layout import COMMIT_MASK, HEADER, geometry
from ftrace.ring_buffer import backing, staging
from ftrace.ring_buffer.staging import Staging
from sandbox.memory import mappings
from sandbox.process.descriptors import KeptDescriptor
from sandbox.process.signal_names import signal_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fprobe.cli.failure import Failure
    from fprobe.export.columns.stream import PageReader, PageStream
    from fprobe.export.recording import Recording
    from fprobe.export.trace_dat_sections import Metadata
    from ftrace.ring_buffer.view import RingView


_LENGTH = struct.Struct("<Q")
_PLAN = 1 << 28
"""Bytes for the plan; only those that are written take memory."""

NOT_TO_STANDARD_OUTPUT = (
    "a trace.dat cannot be written to standard output, since parts of it are written again: give -o FILE"
)


class _Plan(NamedTuple):
    """What the parent needs to finish a trace.dat. `rings`: the names of the trace arrays, in the order of the file."""

    path: str
    page_size: int
    compression: str
    rings: list[str]
    metadata: Metadata


class Survival:
    """In the child: the memory that the parent reads when the child has ended. See `backing.Shared`."""

    def __init__(self, launcher: int, memory: int, size: int, stream: PageStream | None = None) -> None:
        self._launcher, self._memory, self._size = launcher, memory, size
        self.staging = Staging(memory + size + _PLAN)
        self.stream = stream
        """Takes the records, if the parent makes a file of columns of them."""
        self._pid = os.getpid()
        self._largest = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        self._recording: Recording | None = None

    def map_pages(self, size: int) -> int:
        """Address of the memory for this process; the child of a fork gets none. Raises OSError."""
        if os.getpid() != self._pid:
            raise OSError(errno.ENOMEM, "the memory belongs to the process that records")
        return self._memory + comms.SIZE

    def map_comms(self, size: int) -> int:
        """Address of the table of thread names."""
        return self._memory

    def begin(self, recording: Recording) -> None:
        """Tell the parent about the trace.dat."""
        from fprobe.export.trace_dat import TraceDat

        file = recording.file
        file.staging = self.staging
        recording.heir = self
        self._recording = recording
        if not isinstance(file, TraceDat):
            return
        names = [array.name for array in recording.arrays.values()]
        plan = _Plan(
            os.path.realpath(file.path), file.page_size, recording.compression, names, recording.first_metadata
        )
        written = pickle.dumps(plan)
        if len(written) > _PLAN - _LENGTH.size:
            raise ValueError(f"the symbols take {len(written)} bytes; {_PLAN - _LENGTH.size} are supported")
        ctypes.memmove(self._memory + self._size + _LENGTH.size, written, len(written))
        ctypes.memmove(self._memory + self._size, _LENGTH.pack(len(written)), _LENGTH.size)

    def can_write_after(self, failed: OSError) -> bool:
        """Whether the parent can write: the program has closed our descriptor, or has limited the size of its files."""
        if failed.errno == errno.EFBIG:
            return resource.getrlimit(resource.RLIMIT_FSIZE)[0] not in (self._largest, resource.RLIM_INFINITY)
        return failed.errno == errno.EBADF

    @property
    def is_needed(self) -> bool:
        """Whether the parent has to finish the file when the child has ended."""
        return self._recording is not None and self._recording.left is not None

    def keep(self, events: object) -> None:
        """Keep the events, and thereby the records, until this process has ended: a reference to them is never given back."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(events))

    @contextlib.contextmanager
    def ending(self) -> Iterator[None]:
        """Inside the block the child finishes the file. If that fails, the parent does not try, unless `is_needed`."""
        try:
            yield
        finally:
            if not self.is_needed:
                ctypes.memset(self._memory + self._size, 0, _LENGTH.size)

    def poll(self, records: Callable[[], bool]) -> bool:
        """Call `records` again and again; once the parent has been killed, the recording ends as after Ctrl-C."""
        ctrl_c.presses = ctrl_c.presses or int(os.getppid() != self._launcher)
        return records()


def survive(columns: str | None = None) -> Survival:
    """Continue in a child. The parent waits for its end, finishes the file that it left unfinished, and ends as the child did.

    `columns`: the path of a Parquet file, which the parent writes. Raises Failure if it cannot be written, or pyarrow is missing.
    """
    launcher = os.getpid()
    size = comms.SIZE + geometry(backing.pool_size()).size
    memory = mappings.map_inherited(size + _PLAN + staging.SIZE)
    pipes = _Pipes(columns) if columns is not None else None
    child = Program.copy()
    if child.pid:
        if pipes is not None:
            _write_columns(child, pipes, memory, size)
        _outlive(child, memory, size)
    survival = Survival(launcher, memory, size, pipes.writer() if pipes is not None else None)
    if not os.environ.get(backing.PATH):
        backing.share(survival)
    return survival


class _Pipes:
    """The open file, and the pipes of a PageStream."""

    def __init__(self, path: str) -> None:
        from fprobe.cli.failure import input_errors
        from fprobe.export.columns.parquet import Sink, check_found

        self._is_new = not os.path.lexists(path)
        with input_errors():
            check_found()
            self.sink = Sink(path)
        self.path = path
        self._pages, self._reply = os.pipe(), os.pipe()

    def take_back(self) -> None:
        """Remove a file that was made for this recording, and in which nothing is."""
        with contextlib.suppress(OSError):
            if self._is_new and os.lstat(self.path).st_size == 0:
                os.unlink(self.path)  # noqa: PTH108  # of a text

    def writer(self) -> PageStream:
        """In the child: what it writes to."""
        from fprobe.export.columns.stream import PageStream

        self.sink.close()
        os.close(self._pages[0])
        os.close(self._reply[1])
        launcher = f"/proc/{os.getppid()}/fd"
        pages, reply = (
            KeptDescriptor(number, functools.partial(os.open, f"{launcher}/{number}", how | os.O_CLOEXEC))
            for number, how in ((self._pages[1], os.O_WRONLY), (self._reply[0], os.O_RDONLY))
        )
        return PageStream(self.path, pages, reply)

    def reader(self, memory: int, lost: Callable[[], int]) -> PageReader:
        """In the parent: what makes the file. The child's ends stay open here, for a program that closes them."""
        from fprobe.export.columns.stream import PageReader

        return PageReader(self.sink, self._pages[0], self._reply[1], lambda tid: comms.find_comm(memory, tid), lost)


def _write_columns(child: Program, pipes: _Pipes, address: int, size: int) -> NoReturn:
    """Write the file while the child records."""
    from fprobe.export.columns.layout import origin_of

    lost = lambda: sum(ring.lost(slot) for ring in _MemoryOfChild(address, size).all() for slot in ring.slots())  # noqa: E731
    reader = pipes.reader(address, lost)
    reader.start(origin_of(child.pid))
    status = child.wait()
    is_sudden = not reader.is_finished
    try:
        reader.end(lambda names: _rest(_MemoryOfChild(address, size), names))
        if is_sudden and reader.is_finished:
            print(f"fprobe: {_end(status)}; {pipes.path} has its records: {reader.rows:,} rows", file=sys.stderr)
    except Exception as error:
        print(f"fprobe: {pipes.path}: the rest of the recording cannot be saved: {error}", file=sys.stderr, flush=True)
        status = status or 1 << 8
    pipes.take_back()
    end_like(status)


def _rest(memory: _MemoryOfChild, names: Sequence[str]) -> Iterator[tuple[int, int, bytes]]:
    """The sub-buffers that the child has not written: number of the trace array, slot, and bytes.

    First those that it had consumed, with their marks: some of them may be in the file.
    """
    from fprobe.export.trace_dat_pages import owner_of

    for page in memory.staged.pages():
        owner = owner_of(page)
        rings = memory.rings(names[owner.buffer]) if owner is not None else []
        if owner is not None and not any(
            _is_same(page, each.data) for ring in rings for each in ring.pages(owner.slot)[:1]
        ):
            yield owner.buffer, owner.slot, page
    for number, name in enumerate(names):
        for ring in memory.rings(name):
            yield from ((number, slot, page) for slot in ring.slots() for page in _unread(ring, slot))


def _outlive(child: Program, memory: int, size: int) -> NoReturn:
    status = child.wait()
    try:
        _finish(_MemoryOfChild(memory, size), status)
    except OSError as error:
        print(f"fprobe: the rest of the recording cannot be saved: {error.strerror}", file=sys.stderr, flush=True)
    end_like(status)


def _finish(memory: _MemoryOfChild, status: int) -> None:
    """Finish the trace.dat if the child did not."""
    from fprobe.export.outcome import losses
    from fprobe.export.trace_dat import TraceDat

    plan = memory.plan
    if plan is None:
        return
    path, page_size, compression, names, metadata = plan
    file = TraceDat.reopened(path, page_size, len(names), compression, metadata)
    if file is None:
        return
    lost = sum(ring.lost(slot) for name in names for ring in memory.rings(name) for slot in ring.slots())
    written = file.newest(staging.BATCH)
    for number, slot, page in _rest(memory, names):
        if page not in written:
            file.add(slot, page, number)
    dropped = file.finish(replace(metadata, cmdlines=memory.cmdlines(metadata.cmdlines)))
    print(f"fprobe: {_end(status)}; {path} has its records; {losses(lost, dropped)}", file=sys.stderr)


def _end(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"the program was ended by {signal_name(os.WTERMSIG(status))}"
    return f"the program ended with status {os.WEXITSTATUS(status)}"


def _unread(ring: RingView, slot: int) -> Iterator[bytes]:
    """The sub-buffers of a slot that were not consumed, with lost events marked."""
    from ftrace.ring_buffer import pages

    expected, dropped = ring.slot_word(slot, "read"), ring.slot_word(slot, "reported")
    for page in ring.pages(slot):
        held = pages.count(page.data)
        if held > page.skip:
            lost = page.first + page.skip - expected + page.lost - dropped
            yield pages.marked(pages.without_first(page.data, page.skip), lost)
        expected, dropped = page.first + held, page.lost


def _is_same(page: bytes, other: memoryview | bytes) -> bool:
    """Whether two sub-buffers have the same records from the same time on. What follows the records may differ."""
    end = HEADER + (staging.COMMIT.unpack_from(page, staging.COMMIT_AT)[0] & COMMIT_MASK)
    at = staging.COMMIT_AT
    return page[:at] == other[:at] and page[HEADER:end] == other[HEADER:end]


class _MemoryOfChild:
    """The memory file of the child, after its end. Empty if nothing was recorded."""

    def __init__(self, address: int, size: int) -> None:
        from ftrace.ring_buffer.view import MemoryFile

        self._address, self._size = address, size
        pages, length = address + comms.SIZE, size - comms.SIZE
        if path := os.environ.get(backing.PATH):
            pages, length = _mapped(path)
        view = memoryview((ctypes.c_char * length).from_address(pages)).cast("B")
        self._file = MemoryFile(view) if any(view[:8]) else None
        self.staged = Staging(address + size + _PLAN)

    @property
    def plan(self) -> _Plan | None:
        """What the child has written; None if it has not begun to record."""
        at = self._address + self._size
        (length,) = _LENGTH.unpack(ctypes.string_at(at, _LENGTH.size))
        return _Plan(*pickle.loads(ctypes.string_at(at + _LENGTH.size, length))) if length else None

    def rings(self, name: str) -> Sequence[RingView]:
        """The rings of a trace array that have records."""
        from ftrace.ring_buffer.view import RingView

        file = self._file
        if file is None:
            return []
        return [RingView(file, each.number, each.order) for each in file.rings() if each.name == name]

    def all(self) -> Sequence[RingView]:
        """All rings."""
        return [each for entry in (self._file.rings() if self._file else ()) for each in self.rings(entry.name)]

    def cmdlines(self, before: str) -> str:
        """The names of the threads: those that are known, and those of threads that have recorded."""
        found = {tid: comms.find_comm(self._address, tid) for tid in comms.threads(self._address)}
        return before + "".join(f"{tid} {name}\n" for tid, name in found.items() if name)


def _mapped(path: str) -> tuple[int, int]:
    """Address and size of a view of the file that the user has chosen for the pages. Raises OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        return mappings.map_shared(descriptor, 0, size), size
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def disk_errors(path: str) -> Iterator[None]:
    """Turn the errors of a full disk into a Failure."""
    from sandbox.process.writing import DISK_FULL

    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise disk_failure(path, "the file is not finished") from None


def disk_failure(path: str, what: str) -> Failure:
    """The Failure of a full disk. `what`: what it has cost."""
    from fprobe.cli.failure import FAILED, Failure

    return Failure(f"{path}: the disk is full, or a limit of the file's size is reached: {what}; free space", FAILED)
