"""The handlers of `fprobe trace`: they take note of what is there and leave everything else for later."""

from __future__ import annotations

import threading
from collections import deque
from time import perf_counter_ns, sleep
from typing import Any, NamedTuple

from fprobe.cli.registers import Note, with_vectors, without_vectors
from fprobe.cli.values import Memory
from fprobe.cli.views import Images, Views

_NO_ADDRESSES: tuple[bytes | None, ...] = ()
_BACKLOG = 20_000
"""Events that may wait; beyond it the traced threads wait for whoever takes them."""
_BATCH = 1_000


class Event(NamedTuple):
    """An entry or a return. `images`: see views; `time`: perf_counter_ns."""

    is_entry: bool
    time: int
    thread: int
    ip: int
    caller: int
    images: Images


class Recorder:
    """Collects the events of all threads in the order in which they happened.

    After `limit` calls (0: never) the others are only counted.
    """

    def __init__(self, views: Views, limit: int = 0) -> None:
        self.views = views
        self.limit = limit
        self.over_limit = 0
        """Calls that came after the limit."""
        self.stopped = False
        """Nobody takes events any more."""
        self._memory = Memory()
        # Appending and taking from the other end are atomic.
        self._events: deque[tuple[bool, int, int, int, int, Images]] = deque()

    def handlers(self) -> dict[str, Any]:
        """`entry` and `exit` for `fprobe.attach`."""
        adapt = with_vectors if self.views.want_vectors else without_vectors
        return {"entry": adapt(self._entered()), "exit": adapt(self._left())}

    def _entered(self) -> Note:
        views, memory, events = self.views, self._memory, self._events
        left = self.limit or -1

        def entered(ip: int, ret_ip: int, registers: bytes) -> int:
            nonlocal left
            if not left:
                self.over_limit += 1
                return 1
            left -= 1
            while len(events) > _BACKLOG and not self.stopped:
                sleep(0.001)
            side = views[ip].entry
            images = (registers, _NO_ADDRESSES) if side.is_plain else side.capture(registers, memory)
            events.append((True, perf_counter_ns(), threading.get_native_id(), ip, ret_ip, images))
            return 0

        return entered

    def _left(self) -> Note:
        views, memory, events = self.views, self._memory, self._events

        def left(ip: int, ret_ip: int, registers: bytes) -> int:
            now = perf_counter_ns()
            side = views[ip].leave
            images = (registers, _NO_ADDRESSES) if side.is_plain else side.capture(registers, memory)
            events.append((False, now, threading.get_native_id(), ip, ret_ip, images))
            return 0

        return left

    def take(self) -> list[Event]:
        """The next events, each once; at most a thousand, so that whoever takes them stays responsive."""
        events = self._events
        return [Event(*events.popleft()) for _ in range(min(len(events), _BATCH))]

    def close(self) -> None:
        """Give back what it holds. The handlers must not be called any more."""
        self._memory.close()
