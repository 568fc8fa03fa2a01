"""trace_pipe and trace_pipe_raw, which consume records. Readers wait for records, or fail with EAGAIN."""

from __future__ import annotations

import errno
import os
import time
from abc import abstractmethod

from ftrace.hit.ring_buffer.layout import HEADER
from ftrace.ring_buffer.arena import Cpu, Slots
from ftrace.ring_buffer.packing import Packer
from ftrace.ring_buffer.reader import Record
from ftrace.tracing.events.event_mutex import event_mutex
from ftrace.tracing.events.registry import event_registry
from ftrace.tracing.files.nodes import ENCODING, Handle, Node
from ftrace.tracing.instances.trace_array import TraceArray
from ftrace.tracing.output.graph import Slot, held_back
from ftrace.tracing.output.trace import record_format

_KIB = 1024
_STAMP = 8
"""Bytes of the time stamp at the start of a sub-buffer."""
_FOREVER = 1 << 64
_BATCH = 4096
"""Batch size where all records are read, or a record's text depends on its successor."""
_LINE = 128
"""Bytes that few lines exceed: a read consumes hardly more records than it returns."""
_POLL = 0.01
"""Seconds between two checks of an empty buffer: writers do not wake readers."""


def is_full(used: int, size_kb: int, subbuf_kb: int, percent: int) -> bool:
    """Whether `used` bytes make `percent` of the sub-buffers of a slot: full_hit() of kernel/trace/ring_buffer.c.

    The sub-buffer that is being written counts as used.
    """
    data = subbuf_kb * _KIB - HEADER
    return (used // data + 1) * 100 >= percent * -(-size_kb * _KIB // data)


class _Stream(Handle):
    """An open pipe. Data that a read has consumed but not returned is left for the next read."""

    is_stream = True

    def __init__(self, array: TraceArray, slot: Slots, flags: int) -> None:
        self._array, self._slot = array, slot
        self._waits = not flags & os.O_NONBLOCK
        self._pending = b""
        self._has_read = False

    def read(self, size: int = -1) -> bytes:
        """Read at most `size` bytes; if negative, everything that is there at the call; b"" at the end.

        Waits for data. The end is reached when recording is off and something was read before. If the file was opened with
        O_NONBLOCK, raises OSError(EAGAIN) instead of waiting.
        """
        while not (data := self.read_now(size)):
            if not self._waits:
                raise OSError(errno.EAGAIN, "there are no new records; read again later")
            if data is not None:
                break
            time.sleep(_POLL)
        return data

    def read_now(self, size: int) -> bytes | None:
        """Read at most `size` bytes; None if there are none yet, b"" at the end."""
        if not self._fill(size):
            return b"" if self._is_at_end() else None
        self._has_read = True
        end = len(self._pending) if size < 0 else size
        taken, self._pending = self._pending[:end], self._pending[end:]
        return taken

    def poll(self, timeout: float | None = 0.0) -> bool:
        """Whether there is data: for a slot, as much of its buffer as buffer_percent says. As ring_buffer_poll_wait().

        With the option block, always. Waits up to `timeout` s for that; None: forever.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while not self._has_enough():
            if end is not None and time.monotonic() >= end:
                return False
            time.sleep(_POLL if end is None else min(_POLL, max(end - time.monotonic(), 0)))
        return True

    def _has_enough(self) -> bool:
        buffer, slot = self._array.buffer, self._slot
        if self._pending or self._has_more or self._array.options["block"]:
            return True
        if slot is None:
            return any(buffer.stats(each).entries for each in buffer.slots())
        return any(map(self._is_full_enough, buffer.chosen(slot)))

    def _is_full_enough(self, slot: int) -> bool:
        buffer, stats = self._array.buffer, self._array.buffer.stats(slot)
        return bool(stats.entries) and is_full(
            stats.bytes, buffer.slot_size_kb(slot), buffer.subbuf_kb, self._array.buffer_percent
        )

    @property
    def _has_more(self) -> bool:
        """Whether records are consumed that are not pending yet."""
        return False

    def _is_at_end(self) -> bool:
        """Whether a reader that finds no data gets the end instead of waiting."""
        return self._has_read and not self._array.tracing_on

    @abstractmethod
    def _fill(self, size: int) -> bool:
        """Consume until `size` bytes are pending; if negative, everything. Returns whether any are pending."""


class _Source:
    """The records of a pipe, and their format, `shown`.

    The number of an event may pass to another one. Where the old one has left records, the buffer is emptied: then this has the
    records from before, with their names.
    """

    def __init__(self, array: TraceArray, slot: Slots, slots: dict[int, Slot]) -> None:
        self._array, self._slot, self._slots = array, slot, slots
        with event_mutex:
            self._live, self._reader = array.buffer.live, array.buffer.reader()
            self._look_up()

    def _look_up(self) -> None:
        self._changes = event_registry.changes
        self.shown = record_format(self._array, self._slots)

    def take(self, limit: int) -> list[Record]:
        """The next records, at most `limit`; fewer if there are no more."""
        found: list[Record] = []
        with event_mutex:
            while len(found) < limit and (more := self._reader.consume_some(limit - len(found), self._slot)):
                found += more
            if self._changes != event_registry.changes and self._array.buffer.live is self._live:
                self._look_up()
        return found


class PipeHandle(_Stream):
    """An open trace_pipe: lines without a header."""

    _closed = False

    def __init__(self, array: TraceArray, slot: Slots, flags: int) -> None:
        super().__init__(array, slot, flags)
        self._slots: dict[int, Slot] = {}
        self._held: list[Record] = []
        """Consumed, but not shown yet, since the next record may change their text."""

    def _fill(self, size: int) -> bool:
        parts, held = [self._pending], len(self._pending)
        until = self._array.buffer.now if size < 0 else _FOREVER
        source: _Source | None = None
        while size < 0 or held < size:
            with event_mutex:  # between the first names and the first records, a redefined event would empty the buffer
                source = source or _Source(self._array, self._slot, self._slots)
                limit = _BATCH if size < 0 or source.shown.looks_ahead else max((size - held) // _LINE, 1)
                taken = source.take(limit)
                shown = source.shown
            is_last = len(taken) < limit
            ready = self._held + taken
            if shown.looks_ahead and not is_last:
                waiting = held_back(ready)
                ready, self._held = ready[:-waiting], ready[-waiting:]
            else:
                self._held = []
            parts.append("".join(shown.lines(ready)).encode(ENCODING, "surrogateescape"))
            held += len(parts[-1])
            if is_last or taken[-1].stamp > until:
                break
        self._pending = b"".join(parts)
        return bool(self._pending)

    @property
    def _has_more(self) -> bool:
        return bool(self._held)

    def close(self) -> None:
        """Close it, so that it can be opened again."""
        if not self._closed:
            self._closed = True
            self._array.pipes.release(self._slot)


class RawPipeHandle(_Stream):
    """An open trace_pipe_raw or snapshot_raw: whole sub-buffers of one slot or CPU, in which lost events are marked."""

    def __init__(self, array: TraceArray, slot: int | Cpu, flags: int, *, snapshot: bool) -> None:
        super().__init__(array, slot, flags)
        self._own, self._is_snapshot = slot, snapshot
        self._packer = Packer(array.buffer.subbuf_kb * _KIB)

    def _has_enough(self) -> bool:
        return self._is_snapshot or super()._has_enough()

    def _is_at_end(self) -> bool:
        return self._is_snapshot or super()._is_at_end()

    def _fill(self, size: int) -> bool:
        until = self._array.buffer.now
        while size < 0 or len(self._pending) < size:
            page = self._take()
            if page is None:
                break
            self._pending += page
            if size < 0 and int.from_bytes(page[:_STAMP], "little") > until:
                break
        return bool(self._pending)

    def _take(self) -> bytes | None:
        """Consume a sub-buffer; of several slots, the records are merged by time."""
        buffer, own = self._array.buffer, self._own
        if isinstance(own, int):
            return buffer.take_snapshot_page(own) if self._is_snapshot else buffer.take_page(own)
        slots = buffer.chosen(own)
        if len(slots) == 1 and not self._is_snapshot and self._packer.is_empty:
            return buffer.take_page(slots[0])
        return self._packer.page(buffer.consume_snapshot(own) if self._is_snapshot else buffer.consume(own))


class PipeFile(Node):
    """trace_pipe of a trace array, or of one of its slots. A slot's records have at most one reader."""

    mode = 0o440

    def __init__(self, array: TraceArray, slot: Slots = None) -> None:
        self._array, self._slot = array, slot

    def open(self, flags: int) -> Handle:
        """Open it. Raises OSError(EBUSY) if it, or another trace_pipe with the same records, is open."""
        if not self._array.pipes.claim(self._slot):
            raise OSError(errno.EBUSY, "another trace_pipe with these records is open; close it first")
        return PipeHandle(self._array, self._slot, flags)


class RawPipeFile(Node):
    """trace_pipe_raw of a slot, or snapshot_raw. `size`: where it is mounted, splice() moves nothing beyond a file's size."""

    mode = 0o440
    size = 1 << 62

    def __init__(self, array: TraceArray, slot: int | Cpu, *, snapshot: bool = False) -> None:
        self._array, self._slot, self._is_snapshot = array, slot, snapshot

    def open(self, flags: int) -> Handle:
        return RawPipeHandle(self._array, self._slot, flags, snapshot=self._is_snapshot)
