"""Native recording of calls, with registers and the targets of pointers, into a ring buffer; and reading them as events."""

from __future__ import annotations

import ctypes
import struct
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

from fprobe.actions import Action
from fprobe.calls.capture_handlers import (
    ENTRY,
    FOLLOW_SHIFT,
    HEAD,
    MAX_FOLLOWED,
    REGISTERS,
    TEXT,
    VECTORS,
    Capture,
    FunctionPlan,
    NativeParts,
    capture_entry,
    capture_exit,
)
from fprobe.handlers.roles import ENTRY as ENTRY_ROLE
from fprobe.handlers.roles import EXIT as EXIT_ROLE
from ftrace.core.handlers.resolve import native
from ftrace.hit.hashing import FunctionTable
from ftrace.ring_buffer import pages
from ftrace.ring_buffer.buffer import Buffer
from ftrace.tracing.files.tracing_on import switch_address
from sandbox.native import NativeFunction

SIZE_KB = 8192
"""Size of a thread's part of the buffer. When it is full, the thread waits, and then loses its newest records."""
PATIENCE = 2000
"""How often a thread pauses for 50 us, waiting for the reader, before it loses a record."""
_HEAD = struct.Struct("<QQQ")
_COMMON = 8
_LENGTH = struct.Struct("<q")
_BATCH = 1000
_PAGES = 16
"""Sub-buffers that are read from one thread before the next: the thread may fill them as fast as they are read."""

Images = tuple[bytes, tuple["bytes | None", ...]]
"""The image of a call (sandbox.abi.convention), and the contents of the followed addresses."""


class Followed(NamedTuple):
    """A pointer whose target is recorded: its offset in the image of the call, how many bytes, and whether they end at a NUL."""

    offset: int
    size: int
    is_text: bool = True

    @property
    def space(self) -> int:
        """Bytes that its target takes in a record. A text is read with one more byte, which shows whether it ends there."""
        return self.size + self.is_text


class CaptureParts(NamedTuple):
    """The parts of a function's entry or return to record, in addition to the general registers.

    `stack`: bytes above the return address. `follow`: pointers to follow; only the first 32 are.
    """

    vectors: bool = False
    stack: int = 0
    follow: tuple[Followed, ...] = ()


CapturePlan = tuple[CaptureParts, CaptureParts]
"""The records to make at the entry, and at the return."""
REGISTERS_ONLY: CapturePlan = (CaptureParts(), CaptureParts())


class Event(NamedTuple):
    """An entry or a return; `time` is in nanoseconds of CLOCK_MONOTONIC. `place`: of the call on the thread's shadow stack.

    `is_newest`: at a return, no later call of the thread is in progress.
    """

    is_entry: bool
    time: int
    thread: int
    ip: int
    caller: int
    place: int
    is_newest: bool
    images: Images


class _CaptureState:
    """The native state, its tables and the buffer; freed when neither the action nor a probe refers to them."""

    def __init__(
        self, plans: Mapping[int, CapturePlan], others: CapturePlan, limit: int, patience: int, size_kb: int
    ) -> None:
        self.buffer = Buffer("calls", size_kb=size_kb, overwrite=False)
        weakref.finalize(self, self.buffer.close).atexit = False
        self.plans = FunctionTable(FunctionPlan.ctypes, len(plans))
        self._natives: dict[CaptureParts, Any] = {}
        self.state: Any = Capture.ctypes(
            buffer=self.buffer.address, tracing_on=switch_address(), plans=self.plans.address,
            mask=self.plans.mask, shift=self.plans.shift, limit=limit, patience=patience,
        )  # fmt: skip
        self._fill(self.state.others, others)
        for ip, plan in plans.items():
            self._fill(self.plans.add(ip), plan)

    def _fill(self, planned: Any, plan: CapturePlan) -> None:
        planned.entry, planned.leave = map(self._native, plan)

    def _native(self, parts: CaptureParts) -> int:
        if parts not in self._natives:
            self._natives[parts] = _native_parts(parts)
        return ctypes.addressof(self._natives[parts])


class CallCapture(Action):
    """Record entries and returns of functions while tracing is on.

    `plans`: entry address -> what to record at the entry and at the return. `others`: the same for all other functions.
    `limit`: calls to record (0: all); further calls are counted in `over_limit`. `patience`: how often a thread pauses for
    50 us when the buffer is full; 0: never.
    """

    def __init__(
        self,
        plans: Mapping[int, CapturePlan] | None = None,
        others: CapturePlan = REGISTERS_ONLY,
        *,
        limit: int = 0,
        patience: int = PATIENCE,
        size_kb: int = SIZE_KB,
    ) -> None:
        super().__init__()
        self._plans, self._others = plans or {}, others
        self._native = _CaptureState(self._plans, others, limit, patience, size_kb)
        self._pending: deque[Event] = deque()

    def prepare(self, functions: int) -> None:
        self.entry, self.exit = (
            native(cast(NativeFunction, handler), role)
            for handler, role in ((capture_entry, ENTRY_ROLE), (capture_exit, EXIT_ROLE))
        )

    @property
    def state(self) -> int:
        return ctypes.addressof(self._native.state)

    @property
    def over_limit(self) -> int:
        """Calls beyond the limit."""
        state = self._native.state
        return max(0, state.calls - state.limit) if state.limit else 0

    @property
    def lost(self) -> int:
        """Records that did not fit into the buffer."""
        return self._native.buffer.lost()

    def stop_waiting(self) -> None:
        """Reading has ended: threads do not wait for the reader any more."""
        self._native.state.patience = 0

    def take(self) -> list[Event]:
        """The next events, each once, by time; at most a thousand, so that the caller stays responsive."""
        if not self._pending:
            self._pending += sorted(self._read(), key=lambda event: event.time)
        return [self._pending.popleft() for _ in range(min(len(self._pending), _BATCH))]

    def _read(self) -> Iterator[Event]:
        buffer = self._native.buffer
        for slot in buffer.slots():
            for _ in range(_PAGES):
                page = buffer.take_page(slot)
                if page is None:
                    break
                for event in pages.decode(page):
                    yield self._event(event.stamp, page[event.offset : event.offset + event.size])

    def _event(self, stamp: int, data: bytes) -> Event:
        common, (ip, caller, place) = pages.common(data), _HEAD.unpack_from(data, _COMMON)
        is_entry = common.type == ENTRY
        parts = self._plans.get(ip, self._others)[not is_entry]
        return Event(is_entry, stamp, common.pid, ip, caller, place >> 1, not place & 1, _images(parts, data))


def _places(parts: CaptureParts) -> tuple[int, list[int]]:
    """The offset in a record at which the targets of followed pointers begin, and the offset of each."""
    at = HEAD + REGISTERS + VECTORS * parts.vectors + parts.stack
    found = []
    for followed in parts.follow[:MAX_FOLLOWED]:
        found.append(at)
        at += _LENGTH.size + (followed.space + 7 & ~7)
    return at, found


def _native_parts(parts: CaptureParts) -> Any:
    """The native form of the parts."""
    size, _ = _places(parts)
    native_parts = NativeParts.ctypes(length=size, vectors=int(parts.vectors), stack=parts.stack)
    for number, followed in enumerate(parts.follow[:MAX_FOLLOWED]):
        missing = VECTORS if followed.offset >= REGISTERS + VECTORS and not parts.vectors else 0
        where = HEAD + followed.offset - missing
        native_parts.follow[number] = where << FOLLOW_SHIFT | followed.is_text * TEXT | followed.space
        native_parts.count = number + 1
    return native_parts


def _images(parts: CaptureParts, data: bytes) -> Images:
    """The images in a record. Vector registers are zero if the stack was recorded without them."""
    start, places = _places(parts)
    start = places[0] if places else start
    image = data[HEAD:start]
    if parts.stack and not parts.vectors:
        image = image[:REGISTERS] + bytes(VECTORS) + image[REGISTERS:]
    return image, tuple(_target(data, at, followed) for at, followed in zip(places, parts.follow, strict=False))


def _target(data: bytes, at: int, followed: Followed) -> bytes | None:
    (length,) = _LENGTH.unpack_from(data, at)
    if length < 0:
        return None
    at += _LENGTH.size
    taken = min(length, followed.size) if followed.is_text else followed.size
    return data[at : at + taken]
