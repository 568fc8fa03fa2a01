"""Buffer: the ring buffer of a trace array, which is the top level or an instance of tracefs."""

from __future__ import annotations

import ctypes
import errno
import threading
from collections.abc import Iterator
from typing import Any

from ftrace.core.runtime import runtime
from ftrace.hit.ring_buffer import layout
from ftrace.hit.ring_buffer.records import RingBuffer
from ftrace.ring_buffer import clock as clocks
from ftrace.ring_buffer import reader
from ftrace.ring_buffer.arena import Cpu, Rings, Slots, arena, slot_number
from ftrace.ring_buffer.pages import Block, blocks
from ftrace.ring_buffer.reader import Copy, Follower, Reader, Record, SlotReader, Stats
from ftrace.ring_buffer.staging import Staging
from sandbox.process import fork
from sandbox.process.integers import between, whole

DEFAULT_SIZE_KB = 1408
DEFAULT_SUBBUF_KB = 4
MAX_SUBBUF_KB = 512


class Buffer(fork.ProcessBound):
    """A ring buffer with a slot for each thread that records.

    `size_kb`: the capacity of a slot in KiB, rounded up to whole sub-buffers, at least 2; `subbuf_kb`: of a sub-buffer, 1 to 512
    KiB, rounded up to a power of two of at least 4; `overwrite`: whether a full slot loses its oldest events, not new ones;
    `clock`: a name of trace_clock.
    It and its methods raise ValueError for a number out of range, or if it is closed, and OSError(ENOMEM) for a size above the
    pool's or if there are too many buffers.
    """

    def __init__(
        self,
        name: str = "",
        *,
        size_kb: int = DEFAULT_SIZE_KB,
        subbuf_kb: int = DEFAULT_SUBBUF_KB,
        overwrite: bool = True,
        clock: str = "local",
    ) -> None:
        self.name = name
        self._arena = arena()
        self._order = _order(subbuf_kb)
        self._subbufs = self._count(size_kb)
        self._subbufs_of: dict[int, int] = {}
        """Numbers of sub-buffers of slots with a size of their own."""
        self._clock = clocks.find(clock)
        self._overwrite = overwrite
        self._lock = fork.renew(threading.RLock())
        self._handle = self._arena.handle()
        self._rings: dict[int, Rings] = {}
        self._is_on = True
        self._is_closed = False
        self._install(self._ring())
        self._arena.take_part_in_forks(self)

    def __repr__(self) -> str:
        return f"<Buffer {self.name or 'top level'}: {self.size_kb} KiB a slot, clock {self.clock}>"

    @property
    def address(self) -> int:
        """The address of the native `RingBuffer`, which handlers pass to `writer.reserve`."""
        return ctypes.addressof(self._handle)

    # settings

    @property
    def tracing_on(self) -> bool:
        """Whether events are recorded. While it is off, they are not counted as lost either."""
        return self._is_on

    @tracing_on.setter
    def tracing_on(self, on: bool) -> None:
        with self._lock:
            self._is_on = on
            self._until_done("ring_set_live", 0, int(on))

    @property
    def size_kb(self) -> int:
        """KiB of events that a slot may hold, rounded down."""
        return self._subbufs * layout.capacity(self._order) // 1024

    @size_kb.setter
    def size_kb(self, size: int) -> None:
        with self._lock:
            self._subbufs = self._count(size)
            self._subbufs_of.clear()
            for ring in self._rings.values():
                ring.set_sizes(self._subbufs)
                Reader(ring).trim(self._subbufs)

    def set_slot_size_kb(self, slot: int, size: int) -> None:
        """Set the size of one slot in KiB, in the buffer and its snapshot; valid until `size_kb` is set."""
        with self._lock:
            slot = slot_number(slot)
            count = self._subbufs_of[slot] = self._count(size)
            for ring in self._rings.values():
                ring.set_sizes(self._subbufs, self._subbufs_of)
                Reader(ring).trim(count, slot)

    def slot_size_kb(self, slot: int) -> int:
        """KiB of events that one slot may hold, rounded down."""
        return self._subbufs_of.get(slot_number(slot), self._subbufs) * layout.capacity(self._order) // 1024

    @property
    def subbuf_kb(self) -> int:
        """KiB of a sub-buffer. Setting it empties the buffer."""
        return 4 << self._order

    @subbuf_kb.setter
    def subbuf_kb(self, size: int) -> None:
        with self._lock:
            kilobytes, of_slots = self.size_kb, {slot: self.slot_size_kb(slot) for slot in self._subbufs_of}
            self._order = _order(size)
            self._subbufs = self._count(kilobytes)
            self._subbufs_of = {slot: self._count(kilobytes) for slot, kilobytes in of_slots.items()}
            self._renew()

    @property
    def overwrite(self) -> bool:
        """Whether a full slot loses its oldest events, instead of new ones."""
        return self._overwrite

    @overwrite.setter
    def overwrite(self, overwrite: bool) -> None:
        with self._lock:
            self._overwrite = overwrite
            for ring in self._rings.values():
                ring.native.overwrite = int(overwrite)

    @property
    def clock(self) -> str:
        """The clock's name. Setting it empties the buffer."""
        return self._clock.name

    @clock.setter
    def clock(self, name: str) -> None:
        with self._lock:
            self._clock = clocks.find(name)
            self._renew()

    @property
    def now(self) -> int:
        """The time of the buffer's clock, in its units."""
        address = ctypes.addressof(self._live.clock_state)
        return runtime().image.call("ring_clock_now", address) & (1 << 64) - 1

    # recording from Python

    @property
    def longest(self) -> int:
        """Maximum size of an event's fields after the common ones, in bytes."""
        return layout.capacity(self._order) - 2 * layout.COMMON

    def write(self, type_id: int, data: bytes, thread: int = 0) -> bool:
        """Record an event of `thread`, or of the calling one if that is 0.

        `data`: its fields after the common ones; they are padded with zeros to 4 bytes.

        Returns False if the event is lost or recording is off. Raises ValueError if no sub-buffer can hold it, or for a number
        out of range: the type is at most 65535.
        """
        if len(data) > self.longest:
            raise ValueError(
                f"the event has {len(data)} bytes; {self.longest} fit a sub-buffer of {self.subbuf_kb} KiB"
            )
        self._refuse_if_closed()
        type_id = between("type_id", type_id, 0, 0xFFFF)
        copy = ctypes.create_string_buffer(data, len(data) or 1)
        at = ctypes.addressof(copy)
        return bool(runtime().image.call("ring_write", self.address, type_id, at, len(data), thread) & 1)

    # reading

    def slots(self) -> list[int]:
        """The slots that have been written to."""
        return self._live.slots()

    def records(self, slot: Slots = None) -> Iterator[Record]:
        """The records of the buffer, or of one slot, in order of time, as in the file trace. Nothing is consumed."""
        return reader.records(self._live, slot)

    @property
    def live(self) -> object:
        """Changes when the buffer is emptied: `consume` then ends."""
        return self._live

    def copy(self, slot: Slots = None) -> Copy:
        """A copy of the buffer, or of one slot, whose records can be read later. Nothing is consumed."""
        return Copy(self._live, slot)

    def reader(self) -> Reader:
        """A reader that consumes, until the buffer is emptied or a snapshot is taken."""
        return Reader(self._live)

    def consume(self, slot: Slots = None) -> Iterator[Record]:
        """Consume the records of the buffer, or of one slot, in order of time, as trace_pipe."""
        return Reader(self._live).consume(slot)

    def follow(self, follower: Follower) -> list[Record]:
        """The records since the follower's last call, in order of time. Nothing is consumed."""
        live = self._live
        return list(follower.take(live.view, live.slots()))

    def arrays(self, type_id: int, dtype: Any, slot: Slots = None) -> Iterator[Block]:
        """The events of one type as numpy arrays, which are views of copied sub-buffers. Nothing is consumed.

        `dtype` describes an event from its common fields on. Raises ModuleNotFoundError without numpy.
        """
        for each in self._live.chosen(slot):
            for page in self._live.view.pages(each):
                yield from blocks(page, each, type_id, dtype)

    def raw_pages(self, slot: Slots = None) -> Iterator[tuple[int, bytes]]:
        """Consume sub-buffers: slot and bytes of each, as from per_cpu/cpuN/trace_pipe_raw, with lost events marked."""
        return Reader(self._live).raw_pages(slot)

    def chosen(self, slot: Slots) -> list[int]:
        """The slots that are meant: one, or of those that have been written to a CPU's or all."""
        return self._live.chosen(slot)

    def take_page(self, slot: int) -> bytes | None:
        """Consume one sub-buffer of a slot, in the form of `raw_pages`; None if the slot is empty."""
        return SlotReader(self._live, slot).take_raw()

    def drain(self, descriptor: int, slot: Slots = None, mark: int = 0, staging: Staging | None = None) -> int:
        """Write the complete sub-buffers of all slots, or one, to a file, and consume them; returns the bytes written.

        Lost events are marked as in `raw_pages`. `mark`: the upper half of each one's commit word; `staging`: has what was
        consumed but not written when the process is killed. Raises OSError; what was consumed but not written is lost.
        """
        return Reader(self._live).drain(descriptor, slot, mark, staging)

    def stats(self, slot: int | Cpu) -> Stats:
        """The statistics of a slot, or of a CPU's together, as in per_cpu/cpuN/stats."""
        if isinstance(slot, int):
            return reader.stats(self._live, slot, self.now)
        return reader.total([reader.stats(self._live, each, self.now) for each in self._live.chosen(slot)], self.now)

    def written(self, slot: Slots = None) -> int:
        """Number of events written, in all slots or one, including overwritten and consumed ones."""
        return sum(reader.written(self._live, each) for each in self._live.chosen(slot))

    def overrun(self, slot: Slots = None) -> int:
        """The number of events that were overwritten before they were consumed, in all slots or one."""
        return reader.overrun(self._live, slot)

    def lost(self) -> int:
        """The number of events that cannot be read any more: overwritten before they were consumed, or never written."""
        return sum(map(self._live.view.lost, self.slots()))

    # emptying, snapshots

    def clear(self) -> None:
        """Empty the buffer, and reset its counters."""
        with self._lock:
            self._install(self._ring())
            self._retire_unused()

    def clear_slot(self, slot: int | Cpu) -> None:
        """Consume everything in one slot, or in a CPU's."""
        for each in self._live.chosen(slot):
            _consume_all(self._live, each)

    @property
    def has_snapshot(self) -> bool:
        """Whether there is a spare ring for snapshots."""
        return bool(self._handle.spare)

    def allocate_snapshot(self) -> None:
        """Create the spare ring if there is none. Raises OSError(ENOMEM) if there are too many rings."""
        with self._lock:
            if not self._handle.spare:
                self._until_done("ring_set_spare", self._ring().address)

    def snapshot(self) -> None:
        """Take a snapshot: exchange the live and the spare ring, which is created if there is none. Raises OSError(ENOMEM)."""
        with self._lock:
            self.allocate_snapshot()
            runtime().image.call("ring_swap", self.address)

    def snapshot_copy(self, slot: Slots = None) -> Copy | None:
        """A copy of the snapshot, or of one of its slots; None if there is no snapshot. Nothing is consumed."""
        spare = self._rings.get(self._handle.spare or 0)
        return Copy(spare, slot) if spare else None

    def snapshot_records(self, slot: Slots = None) -> Iterator[Record]:
        """The records of the snapshot, in order of time. Nothing is consumed."""
        spare = self._rings.get(self._handle.spare or 0)
        return reader.records(spare, slot) if spare else iter(())

    def take_snapshot_page(self, slot: int) -> bytes | None:
        """Consume one sub-buffer of a slot of the snapshot, in the form of `raw_pages`; None if there is none."""
        spare = self._rings.get(self._handle.spare or 0)
        return SlotReader(spare, slot).take_raw() if spare else None

    def consume_snapshot(self, slot: Slots = None) -> Iterator[Record]:
        """Consume the records of the snapshot, in order of time."""
        spare = self._rings.get(self._handle.spare or 0)
        return Reader(spare).consume(slot) if spare else iter(())

    def snapshot_overrun(self, slot: Slots = None) -> int:
        """Number of events of the snapshot that were overwritten before it was taken."""
        spare = self._rings.get(self._handle.spare or 0)
        return reader.overrun(spare, slot) if spare else 0

    def clear_snapshot(self, slot: Slots = None) -> None:
        """Empty the snapshot, or one slot of it, if there is one."""
        with self._lock:
            spare = self._rings.get(self._handle.spare or 0)
            if spare and slot is None:
                self._replace_spare(self._ring().address)
            elif spare:
                for each in spare.chosen(slot):
                    _consume_all(spare, each)

    def free_snapshot(self) -> None:
        """Delete the snapshot and free its memory."""
        with self._lock:
            if self._handle.spare:
                self._replace_spare(0)

    def close(self) -> None:
        """Free the buffer. No probe may record to it any more. Does nothing if it is closed."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._arena.forget(self)
            self._handle.ring = 0
            for ring in list(self._rings.values()):
                self._retire(ring)
            handle, self._handle = self._handle, RingBuffer.ctypes()  # the next buffer gets it
            self._arena.give_handle(handle)

    def after_fork(self) -> None:
        """Called in the child of a fork: continue with empty rings in the child's memory file; with a spare one if there was."""
        had_spare = len(self._rings) > 1  # the handle is in the memory that was shared
        self._rings.clear()
        self._handle.spare = 0
        self._handle.swapping = 0
        self._install(self._ring())
        if had_spare:
            self._until_done("ring_set_spare", self._ring().address)

    # rings

    @property
    def _live(self) -> Rings:
        while True:  # until no other thread has replaced it meanwhile
            self._refuse_if_closed()
            ring = self._rings.get(self._handle.live)
            if ring is not None:
                return ring

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise ValueError(f"the buffer {self.name or 'top level'} is closed")

    def _ring(self) -> Rings:
        self._refuse_if_closed()
        ring = self._arena.ring(self.name, self._clock, self._order, self._subbufs, self._overwrite)
        ring.set_sizes(self._subbufs, self._subbufs_of)
        self._rings[ring.address] = ring
        return ring

    def _install(self, ring: Rings) -> None:
        self._until_done("ring_set_live", ring.address, int(self._is_on))

    def _replace_spare(self, address: int) -> None:
        """Set the spare ring. A thread may take a snapshot at the same time: retire the rings that are then unused."""
        self._until_done("ring_set_spare", address)
        self._retire_unused()

    def _retire_unused(self) -> None:
        for address in set(self._rings) - {self._handle.live, self._handle.spare}:
            self._retire(self._rings[address])

    def _until_done(self, function: str, *arguments: int) -> None:
        """Repeat a native call that fails while another thread exchanges rings."""
        while not runtime().image.call(function, self.address, *arguments) & 1:
            pass

    def _retire(self, ring: Rings) -> None:
        del self._rings[ring.address]
        self._arena.retire(ring)

    def _renew(self) -> None:
        self.clear_snapshot()
        self.clear()

    def _count(self, kilobytes: int) -> int:
        """Number of sub-buffers in a slot of that size. Raises ValueError below 1 KiB, OSError(ENOMEM) above the pool's size."""
        pool, kilobytes = self._arena.pool_kb, whole("size_kb", kilobytes)
        if kilobytes < 1:
            raise ValueError(f"size_kb is {kilobytes}; it must be between 1 and {pool}")
        if kilobytes > pool:
            raise OSError(
                errno.ENOMEM, f"size_kb is {kilobytes}; the pool of all buffers has {pool} (FPROBE_BUFFER_POOL_KB)"
            )
        return layout.subbufs(kilobytes, self._order)


def _order(subbuf_kb: int) -> int:
    return layout.subbuf_order(between("subbuf_kb", subbuf_kb, 1, MAX_SUBBUF_KB))


def _consume_all(ring: Rings, slot: int) -> None:
    while SlotReader(ring, slot).take() is not None:
        pass
