"""Single-probe fast paths: a kprobe or kretprobe with native handlers that is the only probe at its place.

On an ftrace location it has an ftrace_ops of its own, on the fast trampolines. At a jump, a kretprobe has a list of its own,
on the same trampolines (kprobes.fast.return_stubs).

Such a probe gets a native half (ftrace.core.probe) at registration, which arms it while it is the only one; with others at the
place it takes the general path (kprobes.fast.ftrace_site). On the fast path, the instances of a kretprobe are nodes of the
shadow stack. One pool counts both kinds of instances, so that no more than `maxactive` calls are in progress, however they
were hooked.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
from collections.abc import Mapping
from typing import Any

from ftrace.core import ops as ftrace
from ftrace.core.handlers.resolve import entry_kind, exit_kind
from ftrace.core.ops import ftrace_ops
from ftrace.core.ops_flags import FTRACE_OPS_FL_SAVE_REGS
from ftrace.core.probe import NativeProbe
from ftrace.core.runtime import runtime
from ftrace.core.sites.lists import ListRecord
from ftrace.core.tracer import tracer
from ftrace.hit.records import ENTRY_REGS, EXHAUSTED, HAS_ENTRY, HAS_EXIT, KPROBE, POOL_SHARED, STOPPED, UNLOCKED
from kprobes.handlers.native_decorator import EventFunction
from kprobes.handlers.roles import ENTRY, PRE, RETURN, keeps_registers, registers
from kprobes.hit.records import Child, Instance
from kprobes.hit.runtime import kprobe_runtime
from sandbox.threads.tasks import COUNTER_LINES

MOST_DATA = 64
"""Bytes of a kretprobe's data that fit into a node."""
MOST = COUNTER_LINES // 2
"""Probes that may have a native half at once. The other counter lines are left to fprobes (sandbox.threads.tasks)."""


class SingleProbe(NativeProbe):
    """A native half that may be armed and disarmed many times, until its owner calls `release`.

    Raises OSError(ENOSPC) if there are MOST of them, or no counter line is free.
    """

    header = Instance.offset("data")
    count = 0
    """How many exist."""

    def __init__(self, keep: Any, **values: Any) -> None:
        if SingleProbe.count >= MOST:
            raise OSError(errno.ENOSPC, f"{MOST} kprobes and kretprobes are on the fast path; that is the maximum")
        super().__init__(tracer().table.lines, keep, **values)
        SingleProbe.count += 1
        self._held = True
        self.stopping = False
        """Whether its owner is being unregistered, not only disarmed."""

    def change_flags(self, on: int = 0, off: int = 0) -> None:
        """Ignores STOPPED unless `stop` was called: disarming it must not take the handlers from calls in progress."""
        super().change_flags(on if self.stopping else on & ~STOPPED, off)

    def take_away(self, nodes: int) -> None:
        """In the child of a fork: take `nodes` from the pool, for those calls of this thread that hold other instances."""
        if self.native.flags & POOL_SHARED:
            self.native.pool_shared -= nodes
        else:
            self.native.pool_unclaimed -= nodes

    def stop(self) -> None:
        """Its owner is being unregistered: stop calling its handlers. The caller updates the lists."""
        self.stopping = True
        self.change_flags(on=STOPPED)

    def free(self) -> None:
        """Called when no list refers to it: free it if its owner has released it."""
        if not self._held and not self._freed:
            self._freed = True
            SingleProbe.count -= 1
            super().free()

    _freed = False

    def release(self) -> None:
        """Free this path as soon as no list refers to it. It will not be armed again."""
        tracing = tracer()
        with tracing.table.lock:
            self._held = False
            if not tracing.reclaimer.is_waiting(self):
                self.free()


class FastPath:
    """The single-probe fast path of a probe."""

    def __init__(self, probe: SingleProbe) -> None:
        self.probe = probe

    def stop(self) -> None:
        """Take no instances and call no handlers any more, not even at the return of calls in progress."""
        raise NotImplementedError

    def is_idle(self) -> bool:
        """Whether no call in progress refers to it. Called once all instances are free."""
        return True

    def free(self) -> None:
        """Free it: its probe has left its place, and no call refers to it."""
        self.probe.release()


class SingleOps(FastPath):
    """The ftrace_ops of a single probe."""

    def __init__(self, probe: SingleProbe) -> None:
        super().__init__(probe)
        self.ops = ftrace_ops(kprobe_runtime().image.address("kprobe_ftrace_handler"), FTRACE_OPS_FL_SAVE_REGS)
        self.ops.hooks_return = bool(probe.native.kind & HAS_EXIT)

    def arm(self, address: int) -> None:
        """Arm the place. If this raises OSError, nothing is armed."""
        ftrace.ftrace_set_filter_ip(self.ops, address, reset=True)
        try:
            ftrace.register_ops(self.ops, self.probe)
        except BaseException:
            ftrace.ftrace_free_filter(self.ops)
            raise

    def disarm(self, _address: int) -> None:
        """Disarm the place. Does nothing once ftrace is dead."""
        if self.ops.enabled and not tracer().dead:
            ftrace.unregister_ftrace_function(self.ops)
            ftrace.ftrace_free_filter(self.ops)

    def stop(self) -> None:
        """See FastPath."""
        self.probe.stop()
        self._set(0)

    def kill(self) -> None:
        """Ftrace is dead: handle no more entries."""
        self._set(EXHAUSTED)

    def _set(self, flag: int) -> None:
        tracing = tracer()
        with tracing.table.lock:
            self.probe.change_flags(on=flag)
            tracing.table.lists.flags_changed(self.probe)


class FastReturn(FastPath):
    """A kretprobe as a probe of ftrace's kind, and the list that holds it alone.

    `rp`: the kretprobe's native half. `values`: the fields from kretprobe_values. Raises OSError as SingleProbe does.
    """

    def __init__(self, rp: Any, values: Mapping[str, Any]) -> None:
        super().__init__(SingleProbe(rp, action=ctypes.addressof(rp), **values))
        self.list = ListRecord(runtime(), (self.probe,))

    def stop(self) -> None:
        """See FastPath."""
        self.probe.stop()
        self.list.choose_trampolines(runtime())

    def is_idle(self) -> bool:
        """Whether no call in progress was hooked with its list."""
        return not runtime().image.call("is_pinned", self.list.address)


def _ops(keep: Any, **values: Any) -> SingleOps | None:
    with contextlib.suppress(OSError):
        return SingleOps(SingleProbe(keep, **values))
    return None


def ops_of_kprobe(pre_handler: Any, native: int, keep: Any) -> SingleOps | None:
    """The ops for a kprobe on an ftrace location with only a pre_handler; None unless that is native.

    `native`: address of the kprobe's native half.
    """
    if not keeps_registers(pre_handler):
        return None
    regs = entry_kind(registers(pre_handler, PRE))
    if regs and pre_handler.returns_a_value:
        regs = ENTRY_REGS  # only the trampolines with registers honour a changed ip
    symbol = "kprobe_single_regs" if regs else "kprobe_single"
    early = 0
    if isinstance(pre_handler, EventFunction):
        symbol, early = "kprobe_single_event", Child.ctypes.from_address(native).action
    entry = kprobe_runtime().image.address(symbol)
    return _ops(keep, kind=KPROBE | HAS_ENTRY | regs, entry=entry, action=native, early=early)


def ops_of_kretprobe(values: Mapping[str, Any], address: int, native: int, keep: Any) -> SingleOps | None:
    """The ops for a kretprobe on the ftrace location `address`; `values`: from kretprobe_values.

    `native`: address of the kretprobe's native half. None if the return of the function there cannot be hooked.
    """
    location = tracer().table.location(address)
    if location is None or location.block.unhookable >> location.position & 1:
        return None
    return _ops(keep, action=native, **values)


def fast_return(rp: Any, values: Mapping[str, Any]) -> FastReturn | None:
    """The fast path of a kretprobe that is not on an ftrace location; None if there are too many. `rp`: its native half."""
    with contextlib.suppress(OSError):
        return FastReturn(rp, values)
    return None


def kretprobe_values(
    entry_handler: Any, handler: Any, data_size: int, maxactive: int, on_ftrace: bool
) -> dict[str, Any] | None:
    """Fields of the native half of a kretprobe; None unless its handlers are native and its data fit into a node.

    On an ftrace location, entries take the recursion lock; elsewhere they do not.
    """
    given = [one for one in (entry_handler, handler) if one is not None]
    if data_size > MOST_DATA or not all(map(keeps_registers, given)):
        return None
    at_entry = entry_kind(registers(entry_handler, ENTRY))
    at_return = exit_kind(registers(handler, RETURN))
    is_event = on_ftrace and entry_handler is None and isinstance(handler, EventFunction)
    bare = is_event or (entry_handler is None and not any(one.uses(0) for one in given))
    entry = "kretprobe_single" if on_ftrace else "kretprobe_unlocked"
    entry = "kretprobe_single_bare" if bare else f"{entry}_regs" if at_entry else entry
    exit_ = "kretprobe_single_return" if handler is not None else "kretprobe_single_no_return"
    exit_ = "kretprobe_single_event_return" if is_event else exit_
    image = kprobe_runtime().image
    return {
        "kind": KPROBE | HAS_ENTRY | HAS_EXIT | at_entry | at_return | UNLOCKED * (not on_ftrace),
        "entry": image.address(entry),
        "exit": image.address(exit_),
        "data_size": max(data_size + 7 & -8, 8),
        "pool_unclaimed": maxactive,
        "nr_nodes": maxactive,
    }
