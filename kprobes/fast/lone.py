"""Kprobes and kretprobes that are alone on a function: on an ftrace location an ftrace_ops of their own, on the fast
trampolines; at a jump (kprobes.fast.fast_returns) the list of a kretprobe, on the same.

A probe with native handlers gets a native half (ftrace.probe) when it is registered, and is armed by it for as long as it has
the place to itself; with others it goes the general way (kprobes.fast.ftrace_site). The instances of a kretprobe are nodes of the
shadow stack then. One pool counts those and its own, so that there are never more than `maxactive`, whichever way calls in
flight have come.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
from collections.abc import Mapping
from typing import Any

from ftrace import ops as ftrace
from ftrace.handlers.kinds import entry_kind, exit_kind
from ftrace.hit.records import ENTRY_REGS, EXHAUSTED, HAS_ENTRY, HAS_EXIT, KPROBE, POOL_SHARED, STOPPED, UNLOCKED
from ftrace.ops import ftrace_ops
from ftrace.ops_flags import FTRACE_OPS_FL_SAVE_REGS
from ftrace.probe import NativeProbe
from ftrace.runtime import runtime
from ftrace.sites.lists import ListRecord
from ftrace.tracer import tracer
from kprobes import handlers
from kprobes.hit.records import Instance
from kprobes.hit.runtime import kprobe_runtime
from sandbox.threads.tasks import COUNTER_LINES

MOST_DATA = 64
"""Bytes of a kretprobe's data that a node has room for."""
MOST = COUNTER_LINES // 2
"""Probes that may have a native half at the same time: fprobes want some too (sandbox.threads.tasks.COUNTER_LINES)."""


class LoneProbe(NativeProbe):
    """A native half that is put on its place and taken off time and again until its owner lets it go.

    Raises OSError(ENOSPC) if there are enough of them, or no counter line is left.
    """

    header = Instance.offset("data")
    count = 0
    """How many there are."""

    def __init__(self, keep: Any, **values: Any) -> None:
        if LoneProbe.count >= MOST:
            raise OSError(errno.ENOSPC, f"{MOST} kprobes and kretprobes are on the fast way already")
        super().__init__(tracer().table.lines, keep, **values)
        LoneProbe.count += 1
        self._held = True
        self.stopping = False
        """Whether its owner is being unregistered, and not only taken off its place."""

    def change_flags(self, on: int = 0, off: int = 0) -> None:
        """Calls in flight still get their handler when it is taken off, and so do hits that have found it."""
        super().change_flags(on if self.stopping else on & ~STOPPED, off)

    def take_away(self, nodes: int) -> None:
        """In the child of a fork: calls that its thread is in have as many of the nodes, beside those on fast ways."""
        if self.native.flags & POOL_SHARED:
            self.native.pool_shared -= nodes
        else:
            self.native.pool_unclaimed -= nodes

    def stop(self) -> None:
        """Its owner is being unregistered. The lists have to be told."""
        self.stopping = True
        self.change_flags(on=STOPPED)

    def free(self) -> None:
        """No list refers to it at this moment."""
        if not self._held and not self._freed:
            self._freed = True
            LoneProbe.count -= 1
            super().free()

    _freed = False

    def let_go(self) -> None:
        """It will not be put on anything any more: free it as soon as no list refers to it."""
        tracing = tracer()
        with tracing.table.lock:
            self._held = False
            if not tracing.reclaimer.is_waiting(self):
                self.free()


class FastPath:
    """What serves a probe with native handlers for as long as it has its place to itself."""

    def __init__(self, probe: LoneProbe) -> None:
        self.probe = probe

    def stop(self) -> None:
        """No instance is taken and no handler called any more, for calls that have not returned either."""
        raise NotImplementedError

    def is_idle(self) -> bool:
        """Whether no call in flight refers to it, once all instances are free."""
        return True

    def free(self) -> None:
        """Its probe has left its place, and no call refers to it."""
        self.probe.let_go()


class LoneOps(FastPath):
    """The ftrace_ops of one probe."""

    def __init__(self, probe: LoneProbe) -> None:
        super().__init__(probe)
        self.ops = ftrace_ops(kprobe_runtime().image.address("kprobe_ftrace_handler"), FTRACE_OPS_FL_SAVE_REGS)
        self.ops.hooks_return = bool(probe.native.kind & HAS_EXIT)

    def arm(self, address: int) -> None:
        """Raises OSError, having armed nothing."""
        ftrace.ftrace_set_filter_ip(self.ops, address, reset=True)
        try:
            ftrace.register_ops(self.ops, self.probe)
        except BaseException:
            ftrace.ftrace_free_filter(self.ops)
            raise

    def disarm(self, _address: int) -> None:
        """Nothing happens once ftrace is dead."""
        if self.ops.enabled and not tracer().dead:
            ftrace.unregister_ftrace_function(self.ops)
            ftrace.ftrace_free_filter(self.ops)

    def stop(self) -> None:
        """See FastPath."""
        self.probe.stop()
        self._set(0)

    def kill(self) -> None:
        """Ftrace is dead: no more entries."""
        self._set(EXHAUSTED)

    def _set(self, flag: int) -> None:
        tracing = tracer()
        with tracing.table.lock:
            self.probe.change_flags(on=flag)
            tracing.table.lists.flags_changed(self.probe)


class FastReturn(FastPath):
    """The probe in ftrace's shape of a kretprobe whose native half is `rp`, and the list of it alone.

    `values`: the other fields of that probe, see kretprobe_values. Raises OSError as LoneProbe does.
    """

    def __init__(self, rp: Any, values: Mapping[str, Any]) -> None:
        super().__init__(LoneProbe(rp, action=ctypes.addressof(rp), **values))
        self.list = ListRecord(runtime(), (self.probe,))

    def stop(self) -> None:
        """See FastPath."""
        self.probe.stop()
        self.list.choose_trampolines(runtime())

    def is_idle(self) -> bool:
        """Whether no call is under way that came in with its list."""
        return not runtime().image.call("is_pinned", self.list.address)


def _ops(keep: Any, **values: Any) -> LoneOps | None:
    with contextlib.suppress(OSError):
        return LoneOps(LoneProbe(keep, **values))
    return None


def ops_of_kprobe(pre_handler: Any, native: int, keep: Any) -> LoneOps | None:
    """For a kprobe on an ftrace location with no other handler; None if that is not such. `native`: address of its half."""
    if not handlers.keeps_registers(pre_handler):
        return None
    regs = entry_kind(handlers.registers(pre_handler, handlers.PRE))
    if regs and pre_handler.returns_a_value:
        regs = ENTRY_REGS  # the trampolines for others do not look where ip is left
    entry = kprobe_runtime().image.address("kprobe_lone_regs" if regs else "kprobe_lone")
    return _ops(keep, kind=KPROBE | HAS_ENTRY | regs, entry=entry, action=native)


def ops_of_kretprobe(values: Mapping[str, Any], address: int, native: int, keep: Any) -> LoneOps | None:
    """For a kretprobe on the one at `address`, whose native half is at `native`; `values`: see kretprobe_values."""
    location = tracer().table.location(address)
    if location is None or location.block.unhookable >> location.position & 1:
        return None
    return _ops(keep, action=native, **values)


def fast_return(rp: Any, values: Mapping[str, Any]) -> FastReturn | None:
    """For a kretprobe elsewhere whose native half is `rp`; None if there are too many."""
    with contextlib.suppress(OSError):
        return FastReturn(rp, values)
    return None


def kretprobe_values(
    entry_handler: Any, handler: Any, data_size: int, maxactive: int, on_ftrace: bool
) -> dict[str, Any] | None:
    """Fields of the native half of a kretprobe with native handlers and not too much data; None for others.

    On an ftrace location its entries take the recursion lock, elsewhere they do not.
    """
    given = [one for one in (entry_handler, handler) if one is not None]
    if data_size > MOST_DATA or not all(map(handlers.keeps_registers, given)):
        return None
    at_entry = entry_kind(handlers.registers(entry_handler, handlers.ENTRY))
    at_return = exit_kind(handlers.registers(handler, handlers.RETURN))
    bare = entry_handler is None and not any(one.uses(0) for one in given)
    entry = "kretprobe_lone" if on_ftrace else "kretprobe_unlocked"
    entry = "kretprobe_lone_bare" if bare else f"{entry}_regs" if at_entry else entry
    exit_ = "kretprobe_lone_return" if handler is not None else "kretprobe_lone_no_return"
    image = kprobe_runtime().image
    return {
        "kind": KPROBE | HAS_ENTRY | HAS_EXIT | at_entry | at_return | UNLOCKED * (not on_ftrace),
        "entry": image.address(entry),
        "exit": image.address(exit_),
        "data_size": max(data_size + 7 & -8, 8),
        "pool_unclaimed": maxactive,
        "nr_nodes": maxactive,
    }
