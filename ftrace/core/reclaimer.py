"""Freeing what hits have used: probe lists and native probes that were taken off their sites."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ftrace.core.probe import NativeProbe
    from ftrace.core.runtime import Runtime
    from ftrace.core.sites.lists import ListRecord
    from ftrace.core.sites.locations import LocationTable


class _PendingFree(NamedTuple):
    """The arguments of one call of `settle`."""

    disabled: NativeProbe | None
    before_free: Callable[[], None] | None
    whole: bool


class _Deferred(threading.local):
    """The calls that a thread has deferred, and the number of deferring blocks it is in."""

    def __init__(self) -> None:
        self.depth = 0
        self.pending: list[_PendingFree] = []


class Reclaimer:
    """Waits until no thread is in what was replaced, then frees what cannot be reached any more.

    A probe that has left its sites is kept while a call that it hooked has not returned, and until its owner has read its
    counts.
    """

    def __init__(self, native: Runtime, table: LocationTable) -> None:
        self._runtime = native
        self._table = table
        self._waiting: list[NativeProbe] = []
        self._unread: list[NativeProbe] = []
        """Waiting probes whose counts their owner has not read yet: another thread must not free them."""
        self._deferred = _Deferred()

    def add(self, probe: NativeProbe, unread: bool) -> None:
        """`probe` has left its sites. `unread`: it is given to `settle` before it may be freed. With the table's lock held."""
        self._waiting.append(probe)
        if unread:
            self._unread.append(probe)

    def is_waiting(self, probe: NativeProbe) -> bool:
        """Whether `probe` has left its sites and is not free yet: calls that it hooked have not returned."""
        with self._table.lock:
            return probe in self._waiting

    def settle(
        self, disabled: NativeProbe | None = None, before_free: Callable[[], None] | None = None, whole: bool = False
    ) -> None:
        """Wait until no other thread is in the lists that were replaced so far, then free what is unreachable.

        Call it without the table's lock, which the handlers that are waited for may want, or within `deferred`.
        `before_free` is called in between, while `disabled`, the probe that the caller has taken off, can still be read.
        `whole`: wait for the hits in all lists.
        """
        self._deferred.pending.append(_PendingFree(disabled, before_free, whole))
        if not self._deferred.depth:
            self._settle()

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Defer `settle` in this thread until the outermost such block ends, for callers that hold a lock."""
        self._deferred.depth += 1
        try:
            yield
        finally:
            self._deferred.depth -= 1
            if not self._deferred.depth and self._deferred.pending:
                self._settle()

    def _settle(self) -> None:
        due, self._deferred.pending = self._deferred.pending, []
        with self._table.lock:
            lists, probes = self._table.lists.retired(), list(self._waiting)
        whole = any(one.whole for one in due)
        all_out = self._runtime.quiesce(None if whole else [record.address for record in lists])
        for one in due:
            if one.before_free is not None:
                one.before_free()
        with self._table.lock:
            for one in due:
                if one.disabled is not None:
                    self._unread.remove(one.disabled)
            if all_out:
                self._free(lists, probes)

    def _free(self, lists: list[ListRecord], probes: list[NativeProbe]) -> None:
        """Free those that no shadow stack refers to and that no other thread has freed."""
        self._table.lists.free(lists)
        for probe in probes:
            if probe in self._waiting and probe not in self._unread and not self._table.lists.in_retired(probe):
                self._waiting.remove(probe)
                probe.free()
