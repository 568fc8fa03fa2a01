"""The process's memory file: its pool of pages, its rings, and their replacement after a fork."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from ftrace.core.runtime import runtime
from ftrace.hit.ring_buffer import comms
from ftrace.hit.ring_buffer.clock_state import SCALED
from ftrace.hit.ring_buffer.layout import PAGE_SIZE, RINGS, SLOT_SIZE, SLOTS, Geometry, capacity, geometry
from ftrace.hit.ring_buffer.records import PAGE_MASK, Ring, RingBuffer, Slot
from ftrace.ring_buffer import backing, clock
from ftrace.ring_buffer.backing import shared
from ftrace.ring_buffer.view import MemoryFile, RingEntry, RingView
from sandbox.memory import mappings
from sandbox.process import fork
from sandbox.process.descriptors import close_own, file_of
from sandbox.process.integers import between
from sandbox.process.once import once

_HANDLES = mappings.PAGE


class Cpu(NamedTuple):
    """The slots that readers are shown as CPU `number` of `of`: each of that remainder."""

    number: int
    of: int


Slots: TypeAlias = int | Cpu | None
"""A slot, those of a CPU, or all."""


def slot_number(slot: int) -> int:
    """`slot` if it can be one. Raises TypeError or ValueError naming it."""
    return between("slot", slot, 0, SLOTS - 1)


def native_ring(
    file: Geometry, base: int, number: int, order: int, clock_state: Any, max_pages: int, *, overwrite: bool
) -> Any:
    """The native half of a ring in a memory file that is mapped at `base`."""
    is_scaled = clock_state.kind == SCALED
    return Ring.ctypes(
        slots=base + file.slots_of(number),
        data=base + file.data,
        capacity=capacity(order),
        clock=ctypes.addressof(clock_state),
        is_scaled=int(is_scaled),
        scaled_capacity=capacity(order) if is_scaled else 0,
        metas=base + file.metas,
        bitmap=base + file.bitmap,
        words=file.words,
        order=order,
        max_pages=max_pages,
        overwrite=int(overwrite),
        number=number,
    )


class Rings:
    """A ring: its entry in the memory file, its native half, and a view of its slots."""

    def __init__(self, arena: Arena, entry: RingEntry, of_clock: clock.Clock, max_pages: int, overwrite: bool) -> None:
        self.arena, self.entry, self.clock = arena, entry, of_clock
        self.clock_state = clock.start(of_clock)
        self.native = native_ring(
            arena.file.geometry, arena.base, entry.number, entry.order, self.clock_state, max_pages, overwrite=overwrite
        )
        self.view = RingView(arena.file, entry.number, entry.order)
        self._own_sizes: set[int] = set()
        """The slots with a size of their own."""

    @property
    def address(self) -> int:
        """Address of the native half."""
        return ctypes.addressof(self.native)

    def slots(self) -> list[int]:
        """The slots that have been written to."""
        return list(self.view.slots(self.arena.slots_in_use))

    def chosen(self, slot: Slots) -> list[int]:
        """One slot, or those of a CPU or (None) all that have been written to. Raises ValueError for one that cannot be."""
        if isinstance(slot, Cpu):
            return [each for each in self.slots() if each % slot.of == slot.number]
        return self.slots() if slot is None else [slot_number(slot)]

    def slot_address(self, slot: int) -> int:
        return int(self.native.slots) + slot * SLOT_SIZE

    def set_sizes(self, subbufs: int, of_slots: Mapping[int, int] = MappingProxyType({})) -> None:
        """Set the number of sub-buffers that a slot may have; `of_slots`: of slots with a number of their own."""
        self.native.max_pages = subbufs
        for slot in {*self._own_sizes, *of_slots}:
            self.view.set_slot_word(slot, "max_pages", of_slots.get(slot, 0))
        self._own_sizes = set(of_slots)

    def release(self) -> None:
        """Free its pages and clear its slots. No thread may record to it any more."""
        self.set_sizes(self.native.max_pages)
        image = runtime().image
        for slot in self.slots():
            page = self.view.slot_word(slot, "head") & PAGE_MASK
            while self.view.slot_word(slot, "sequence"):
                after = self.view.meta_word(page, "next")
                image.call("ring_give_page", self.address, page)
                if not after:
                    break
                page = after - 1
            if spare := self.view.slot_word(slot, "spare"):
                image.call("ring_give_page", self.address, spare - 1)
            ctypes.memset(self.slot_address(slot), 0, SLOT_SIZE)
        self.arena.file.erase_entry(self.entry.number)


class Arena:
    """The memory file, mapped, and the rings in it."""

    def __init__(self) -> None:
        self.lock = fork.renew(threading.RLock())
        """Held while rings are created or released."""
        self.handles = mappings.reserve(_HANDLES)
        mappings.wipe_on_fork(self.handles, _HANDLES)
        self._free_handles = list(range(self.handles, self.handles + _HANDLES, RingBuffer.size))
        memory = shared()
        self.comms = memory.map_comms(comms.SIZE) if memory else mappings.reserve(comms.SIZE)
        self.keep_comms(True)
        self._retired: list[Rings] = []
        self._buffers: list[Any] = []
        self._open(os.environ.get(backing.PATH, ""))
        fork.in_child(fork.Phase.BUFFERS, self._after_fork)

    def _open(self, path: str) -> None:
        size = geometry(backing.pool_size())
        self.base, self._size = self._mapped(size.size, path), size.size
        view = memoryview((ctypes.c_char * size.size).from_address(self.base)).cast("B")
        MemoryFile.write_header(view, size, os.getpid())
        self.file = MemoryFile(view)
        self._free_rings = list(range(RINGS))

    def _mapped(self, size: int, path: str) -> int:
        self.descriptor: int | None = None
        """Descriptor of the memory file, to be read with `RingView`. None if the memory belongs to another process."""
        memory = shared()
        if memory is not None:
            with contextlib.suppress(OSError):  # the other process has ended
                return memory.map_pages(size)
        self.descriptor = backing.create(size, path)
        self._identity = file_of(self.descriptor)
        base = mappings.map_closed(self.descriptor, size)
        mappings.set_writable(base, size, True)
        return base

    @property
    def slots_in_use(self) -> int:
        """One past the highest slot that any thread has had."""
        return int(runtime().image.variable("tasks_claimed_high").value)

    def comm(self, tid: int) -> str | None:
        """The name that a thread had when it first recorded; None if it is not known."""
        return comms.find_comm(self.comms, tid)

    def keep_comms(self, on: bool) -> None:
        """Start or stop saving the names of threads when they record for the first time."""
        runtime().image.variable("thread_comms").value = self.comms if on else 0

    def recorded_threads(self) -> list[int]:
        """The ids of the threads whose names are saved."""
        return comms.threads(self.comms)

    def handle(self) -> Any:
        """Allocate a handle, a ctypes structure through which nothing is recorded yet. Raises OSError(ENOMEM)."""
        with self.lock:
            if not self._free_handles:
                raise OSError(errno.ENOMEM, f"{_HANDLES // RingBuffer.size} buffers exist; close one first")
            return RingBuffer.ctypes.from_address(self._free_handles.pop(0))

    def give_handle(self, handle: Any) -> None:
        """Free a handle. No handler may use it any more."""
        with self.lock:
            ctypes.memset(ctypes.addressof(handle), 0, RingBuffer.size)
            self._free_handles.append(ctypes.addressof(handle))

    @property
    def pool_kb(self) -> int:
        """The size of the pool of pages, in KiB."""
        return self.file.geometry.pages * PAGE_SIZE >> 10

    def ring(self, name: str, of: clock.Clock, order: int, max_pages: int, overwrite: bool) -> Rings:
        """Create an empty ring. Raises OSError(ENOMEM) if there are too many."""
        with self.lock:
            self.collect()
            if not self._free_rings:
                raise OSError(errno.ENOMEM, f"{RINGS} rings exist; close a buffer or free a snapshot first")
            entry = RingEntry(self._free_rings.pop(0), order, of.name, name)
            self.file.write_entry(entry)
            return Rings(self, entry, of, max_pages, overwrite)

    def retire(self, ring: Rings) -> None:
        """Release a ring as soon as no thread uses it. No handle may refer to it any more."""
        with self.lock:
            self._retired.append(ring)
            self.collect()

    def collect(self) -> None:
        """Release the retired rings, unless a hit in progress is itself waiting."""
        with self.lock:
            if self._retired and runtime().quiesce():
                for ring in self._retired:
                    ring.release()
                    self._free_rings.append(ring.entry.number)
                self._retired.clear()

    def take_part_in_forks(self, buffer: Any) -> None:
        """Call `buffer.after_fork()` in the child of each fork, which has an empty memory file of its own."""
        self._buffers.append(buffer)

    def forget(self, buffer: Any) -> None:
        """Undo `take_part_in_forks`."""
        self._buffers.remove(buffer)

    def move(self, memory: backing.Shared) -> None:
        """Go on in other memory, with empty rings. The records so far stay in the memory of before, which is unmapped.

        No event may be enabled.
        """
        backing.share(memory)
        before, self.comms = self.comms, memory.map_comms(comms.SIZE)
        self.keep_comms(True)
        runtime().quiesce()
        mappings.release(before, comms.SIZE)
        self._after_fork()

    def _after_fork(self) -> None:
        mappings.release(self.base, self._size)
        if self.descriptor is not None:
            close_own(self.descriptor, self._identity)
        path = os.environ.get(backing.PATH, "")
        self._retired.clear()
        self._open(f"{path}.{os.getpid()}" if path else "")
        for buffer in list(self._buffers):
            buffer.after_fork()


@once
def arena() -> Arena:
    """The process's memory file, created by the first call."""
    return Arena()


assert Slot.size == SLOT_SIZE
