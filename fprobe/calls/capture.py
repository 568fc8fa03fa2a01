"""Native recording of calls into a ring buffer of this process's own, and reading them while they are made."""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, cast

from fprobe.actions import Action
from fprobe.calls.capture_handlers import Capture, capture_entry, capture_exit
from fprobe.calls.plans import function_plans, plan_anything
from fprobe.calls.records import Event, event_of
from fprobe.handlers.roles import ENTRY as ENTRY_ROLE
from fprobe.handlers.roles import EXIT as EXIT_ROLE
from fprobe.prototypes.described import Described
from ftrace.core.handlers.resolve import native
from ftrace.hit.call_values import ValuePlans
from ftrace.ring_buffer import pages
from ftrace.ring_buffer.buffer import Buffer
from ftrace.tracing.files.tracing_on import switch_address
from sandbox.native import NativeFunction

SIZE_KB = 8192
"""Size of a thread's part of the buffer. When it is full, the thread waits, and then loses its newest records."""
PATIENCE = 2000
"""How often a thread pauses for 50 us, waiting for the reader, before it loses a record."""
_SUBBUF_KB = 64
"""A record of many arguments does not fit into a page."""
_BATCH = 1000
_PAGES = 16
"""Sub-buffers that are read from one thread before the next: the thread may fill them as fast as they are read."""


class _CaptureState:
    """The native state, its plans and the buffer; freed when neither the action nor a probe refers to them."""

    def __init__(
        self, functions: Mapping[int, Described], strings: bool, limit: int, patience: int, size_kb: int
    ) -> None:
        self.buffer = Buffer("calls", size_kb=size_kb, subbuf_kb=_SUBBUF_KB, overwrite=False)
        weakref.finalize(self, self.buffer.close).atexit = False
        self._plans = function_plans(functions, strings=strings)
        plans = ValuePlans.ctypes(plans=self._plans.address, mask=self._plans.mask, shift=self._plans.shift)
        self.native: Any = Capture.ctypes(
            buffer=self.buffer.address, tracing_on=switch_address(), plans=plans, limit=limit, patience=patience
        )
        plan_anything(self.native.others, strings=strings)


class CallCapture(Action):
    """Record entries and returns of functions, with their values, while tracing is on.

    `functions`: what is known of them, by entry address; of others, all is recorded that a function may take. `strings`: what
    pointers lead to is recorded, too. `limit`: calls to record (0: all); further calls are counted in `over_limit`.
    `patience`: how often a thread pauses for 50 us when the buffer is full; 0: never.
    """

    def __init__(
        self,
        functions: Mapping[int, Described] | None = None,
        *,
        strings: bool = True,
        limit: int = 0,
        patience: int = PATIENCE,
        size_kb: int = SIZE_KB,
    ) -> None:
        super().__init__()
        self._state = _CaptureState(functions or {}, strings, limit, patience, size_kb)
        self._pending: deque[Event] = deque()

    def prepare(self, functions: int) -> None:
        self.entry, self.exit = (
            native(cast(NativeFunction, handler), role)
            for handler, role in ((capture_entry, ENTRY_ROLE), (capture_exit, EXIT_ROLE))
        )

    @property
    def state(self) -> int:
        return ctypes.addressof(self._state.native)

    @property
    def over_limit(self) -> int:
        """Calls beyond the limit."""
        state = self._state.native
        return max(0, state.calls - state.limit) if state.limit else 0

    @property
    def lost(self) -> int:
        """Records that did not fit into the buffer."""
        return self._state.buffer.lost()

    def stop_waiting(self) -> None:
        """Reading has ended: threads do not wait for the reader any more."""
        self._state.native.patience = 0

    def take(self) -> list[Event]:
        """The next events, each once, by time; at most a thousand, so that the caller stays responsive."""
        if not self._pending:
            self._pending += sorted(self._read(), key=lambda event: event.time)
        return [self._pending.popleft() for _ in range(min(len(self._pending), _BATCH))]

    def _read(self) -> Iterator[Event]:
        buffer = self._state.buffer
        for slot in buffer.slots():
            for _ in range(_PAGES):
                page = buffer.take_page(slot)
                if page is None:
                    break
                for event in pages.decode(page):
                    yield event_of(event.stamp, page[event.offset : event.offset + event.size])
