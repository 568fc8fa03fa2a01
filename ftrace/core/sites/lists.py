"""Probe lists: what sites run. They are immutable, shared by all sites with the same probes, and freed once unused.

`Reclaimer` frees what hits have used: lists and native probes that were taken off their sites.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import errno
import threading
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from ftrace.hit.records import (
    ARMED_IN_NODE,
    CALLBACK,
    COMPLETE,
    ENTRY_ARGUMENTS,
    ENTRY_REGS,
    ENTRY_SP,
    EXIT_REGS,
    EXIT_RESULTS,
    EXIT_VALUE,
    FILTERED,
    HAS_ENTRY,
    HAS_EXIT,
    LEAN,
    MAX_PROBES_PER_SITE,
    Item,
    Member,
    ProbeList,
)
from sandbox.memory import cpu

if TYPE_CHECKING:
    from ftrace.core.probe import NativeProbe
    from ftrace.core.runtime import Runtime

_NOT_UNDER_SHADOW_STACKS = (
    "the return of a function with its stub after the prologue (mcount) cannot be hooked: its return address would be "
    "exchanged, for which a user shadow stack (CET) ends the process"
)
_ITEMS = ProbeList.offset("items")
_LEAN = (("ftrace_entry_lean", "ftrace_exit_from_list"), ("ftrace_both_lean", "ftrace_exit_lean"))
"""The trampolines of a probe with lean handlers: at the entry, or at both ends."""
_FAST_DATA = 64
"""The maximum entry data of all probes, in bytes, that the fast trampolines can clear."""


class Stubs(enum.Enum):
    """The kinds of stubs that lead to lists."""

    AT_ENTRY = enum.auto()
    AFTER_PROLOGUE = enum.auto()
    """The return slot is not on top of the stack (mcount)."""
    PRESERVING = enum.auto()
    """Detours of code without stubs, where no register is free (ftrace.hit.x86_64.entry_detour)."""


class ListRecord:
    """A native ProbeList and the objects that it refers to. `probes`: in the order in which their entry handlers run.

    `stubs`: the kind of stubs of its sites.
    """

    def __init__(self, runtime: Runtime, probes: tuple[NativeProbe, ...], stubs: Stubs = Stubs.AT_ENTRY) -> None:
        if len(probes) > MAX_PROBES_PER_SITE:
            raise OSError(
                errno.ENOSPC, f"a function already has {MAX_PROBES_PER_SITE} probes, the maximum; unregister one first"
            )
        if (
            stubs is Stubs.AFTER_PROLOGUE
            and any(probe.native.kind & HAS_EXIT for probe in probes)
            and cpu.has_shadow_stacks()
        ):
            raise OSError(errno.EOPNOTSUPP, _NOT_UNDER_SHADOW_STACKS)
        self.probes = probes
        self.stubs = stubs
        self.sites = 0
        """The number of sites that run it."""
        self._memory = ctypes.create_string_buffer(_ITEMS + Item.size * (len(probes) + 1) + 64)
        self.address = (ctypes.addressof(self._memory) + 63) & -64
        self._fill(runtime)

    def _fill(self, runtime: Runtime) -> None:
        members = ctypes.create_string_buffer(b"".join(map(attrgetter("member"), self.probes)) or bytes(Member.size))
        runtime.image.call("fill_list", self.address, ctypes.addressof(members), len(self.probes))
        ProbeList.ctypes.from_address(self.address).preserving = self.stubs is Stubs.PRESERVING
        self.choose_trampolines(runtime)

    def choose_trampolines(self, runtime: Runtime) -> None:
        """Choose the trampolines according to the probes and their present flags."""
        native = ProbeList.ctypes.from_address(self.address)
        native.entry, native.exit = map(runtime.image.address, self._trampolines(native.data_size))

    def _trampolines(self, data_size: int) -> tuple[str, str]:
        """The names of the entry and exit trampolines."""
        if not self.probes:
            return "ftrace_entry_none", "ftrace_exit_from_list"
        if self.stubs is Stubs.PRESERVING:
            return _preserving(self.probes, data_size)
        if self.stubs is Stubs.AT_ENTRY and data_size <= _FAST_DATA:
            if _is_fast(self.probes):
                if self.probes[0].native.kind & LEAN:
                    return _LEAN[bool(self.probes[0].native.kind & HAS_EXIT)]
                entry, exit_ = _entry_of_one(self.probes[0], data_size), _exit_of_one(self.probes[0], data_size)
                if self.probes[0].native.early:
                    entry = entry.replace("ftrace_entry", "ftrace_early")
                    exit_ = exit_.replace("ftrace_exit_results", "ftrace_early_exit_results")
                return entry, exit_
            if 1 < len(self.probes) <= ARMED_IN_NODE and all(map(_is_native, self.probes)):
                return "ftrace_entry_multi", "ftrace_exit_multi"
        return "ftrace_entry_full", "ftrace_exit_from_list"


def _is_fast(probes: tuple[NativeProbe, ...]) -> bool:
    """Whether the single-probe fast trampolines can be used: one plain probe that has a handler."""
    native = probes[0].native
    return len(probes) == 1 and not native.flags and bool(native.kind & (HAS_ENTRY | HAS_EXIT))


def _preserving(probes: tuple[NativeProbe, ...], data_size: int) -> tuple[str, str]:
    """The trampolines for code without stubs."""
    kind = probes[0].native.kind
    entry, exit_ = "ftrace_preserving_full", "ftrace_exit_preserving_full"
    if data_size > _FAST_DATA or not _is_fast(probes):
        return entry, exit_
    if not kind & ENTRY_REGS:
        entry = _entry_of_one(probes[0], data_size).replace("ftrace_", "preserving_")
    if not kind & EXIT_REGS:
        # There is no preserving form for ax alone: the one for both result registers serves it.
        exit_ = _exit_of_one(probes[0], data_size).replace("ftrace_", "preserving_").replace("_value", "_results")
    return entry, exit_


def _is_native(probe: NativeProbe) -> bool:
    """Whether multi-probe trampolines can serve it: its handlers are native and do not need all registers."""
    native = probe.native
    special = native.flags & (COMPLETE | FILTERED) or native.kind & (ENTRY_REGS | EXIT_REGS | CALLBACK)
    return bool(native.kind & (HAS_ENTRY | HAS_EXIT)) and not special


def _entry_of_one(probe: NativeProbe, data_size: int) -> str:
    kind = probe.native.kind
    if kind & ENTRY_REGS:
        return "ftrace_both_regs" if kind & HAS_EXIT else "ftrace_entry_regs"
    arguments = "_args" if kind & ENTRY_ARGUMENTS else "_sp" if kind & ENTRY_SP else ""
    if not kind & HAS_EXIT:
        return f"ftrace_entry_only{arguments}"
    data = "" if not data_size else "_word" if data_size <= 8 else "_data"
    return (f"ftrace_both{arguments}" if kind & HAS_ENTRY else "ftrace_exit_only") + data


def _exit_of_one(probe: NativeProbe, data_size: int) -> str:
    kind = probe.native.kind
    if kind & EXIT_REGS:
        return "ftrace_exit_regs"
    looks = "_results" if kind & EXIT_RESULTS else "_value" if kind & EXIT_VALUE else "_fast"
    return f"ftrace_exit{looks}" + ("_data" if data_size else "")


class ListCache:
    """The lists in use, by their probes, and the lists waiting to be freed."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._by_probes: dict[tuple[tuple[NativeProbe, ...], Stubs], ListRecord] = {}
        self._by_address: dict[int, ListRecord] = {}
        self._retired: dict[int, ListRecord] = {}
        """By address: those that no site runs, which calls in progress may still refer to."""

    def __len__(self) -> int:
        """The number of lists in use."""
        return len(self._by_address)

    def get(self, probes: tuple[NativeProbe, ...], stubs: Stubs = Stubs.AT_ENTRY) -> ListRecord:
        """The list of these probes; created if necessary. Raises OSError(ENOSPC) if there are too many probes."""
        record = self._by_probes.get((probes, stubs))
        if record is None:
            record = ListRecord(self.runtime, probes, stubs)
            self._by_probes[probes, stubs] = self._by_address[record.address] = record
        return record

    def at(self, address: int) -> ListRecord:
        """The list at a native address."""
        return self._by_address[address]

    def flags_changed(self, probe: NativeProbe) -> None:
        """Choose the trampolines of a probe's lists again."""
        alone = (probe,)
        present = [self._by_probes[alone, stubs] for stubs in Stubs if (alone, stubs) in self._by_probes]
        for record in present + [record for record in self._retired.values() if record.probes == alone]:
            record.choose_trampolines(self.runtime)

    def moved(self, old: int, new: int, count: int) -> None:
        """Account for `count` sites that have moved from one list to another, given by their addresses."""
        self._by_address[old].sites -= count
        self._by_address[new].sites += count

    def retire(self) -> None:
        """Retire lists that no site runs. Call `free` after the next quiesce."""
        unused = [record for record in self._by_probes.values() if record.probes and not record.sites]
        for record in unused:
            del self._by_probes[record.probes, record.stubs]
            self._retired[record.address] = record

    def retired(self) -> list[ListRecord]:
        """The retired lists that have not been freed yet."""
        return list(self._retired.values())

    def free(self, records: list[ListRecord]) -> None:
        """Free those of `records` that no shadow stack refers to. They must have been retired before a completed quiesce."""
        for record in records:
            if self._retired.get(record.address) is record and not self.runtime.image.call("is_pinned", record.address):
                del self._retired[record.address]
                del self._by_address[record.address]

    def in_retired(self, probe: NativeProbe) -> bool:
        """Whether a call that this probe hooked has not returned yet."""
        return any(probe in record.probes for record in self._retired.values())


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

    def __init__(self, lists: ListCache, lock: contextlib.AbstractContextManager[bool]) -> None:
        self._lists = lists
        self._lock = lock
        """The table's, which protects the lists."""
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
        with self._lock:
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
        with self._lock:
            lists, probes = self._lists.retired(), list(self._waiting)
        whole = any(one.whole for one in due)
        all_out = self._lists.runtime.quiesce(None if whole else [record.address for record in lists])
        for one in due:
            if one.before_free is not None:
                one.before_free()
        with self._lock:
            for one in due:
                if one.disabled is not None:
                    self._unread.remove(one.disabled)
            if all_out:
                self._free(lists, probes)

    def _free(self, lists: list[ListRecord], probes: list[NativeProbe]) -> None:
        """Free those that no shadow stack refers to and that no other thread has freed."""
        self._lists.free(lists)
        for probe in probes:
            if probe in self._waiting and probe not in self._unread and not self._lists.in_retired(probe):
                self._waiting.remove(probe)
                probe.free()
