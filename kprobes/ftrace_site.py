"""kprobes on an ftrace location: no breakpoint, but the function's stub (KP-50..54).

Two ftrace_ops are shared by all of them; the one with IPMODIFY serves the places where a probe has a post_handler. A probe
that is alone, and whose handlers are native, has an ftrace_ops of its own (kprobes.lone).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from ftrace import ops as ftrace
from ftrace.hit.dispatch import Hit, pt_regs
from ftrace.hit.records import CALLBACK, COMPLETE, HAS_ENTRY, HAS_EXIT, KPROBE, STOPPED, WANTS_REGS
from ftrace.hit.recursion import FTRACE, trylock, unlock
from ftrace.ops import FTRACE_OPS_FL_IPMODIFY, FTRACE_OPS_FL_SAVE_REGS, ftrace_ops
from ftrace.probe import NativeProbe
from ftrace.tracer import tracer
from ftrace.x86_64.stubs import SITE_SIZE
from kprobes.hit.dispatch import children_of, count_misses, run_posts, run_pres
from kprobes.hit.kretprobe_entry import Hook
from kprobes.hit.records import HIT_SSDONE, Record
from kprobes.hit.running import IN_STUB, finish, is_running_in_stub, start
from kprobes.hit.runtime import kprobe_runtime
from kprobes.hit.table import find_record
from sandbox.native import addressof, bool_, cast, global_var, native, null, ptr, u32, u64, void, zeroed
from sandbox.tasks import Task, current

if TYPE_CHECKING:
    from kprobes.aggregate import Aggregate
    from kprobes.lone import LoneOps


killed = global_var(u64, 0, name="kprobe_ftrace_killed")
"""1 once ftrace is dead: its kprobes are too (KP-54)."""


@native
def ftrace_hit(task: ptr[Task], record: ptr[Record], regs: ptr[pt_regs], ip: u64, hit: ptr[Hit]) -> void:
    """A hit with the recursion lock held (KP-52)."""
    children = children_of(record)
    if children.count == 0:
        return
    if is_running_in_stub(task, regs.sp):
        count_misses(children)
        return
    resume = regs.ip
    regs.ip = ip + 1
    hook: Hook = zeroed
    hook.record = record
    hook.hit = hit
    start(task, cast(u64, record), cast(u64, addressof(hook)) | IN_STUB)
    if run_pres(task, children, regs, addressof(hook)) == 0:
        regs.ip = ip + SITE_SIZE
        task.kprobe_status = HIT_SSDONE
        run_posts(task, children, regs)
        regs.ip = resume
    finish(task)


@native
def is_for_another(hit: ptr[Hit]) -> bool_:
    """While a place goes over from one ops to another, both are in its list: the hit is for a probe's own, or the first."""
    before = True
    for index in range(hit.probes.count):
        item = addressof(hit.probes.items[index])
        if item.probe.kind & KPROBE != 0:
            return True
        if item == hit.item:
            before = False
        elif before and item.entry == hit.item.entry:
            return True
    return False


@native
def kprobe_ftrace_handler(ip: u64, parent_ip: u64, ops: u64, regs: ptr[pt_regs], hit: ptr[Hit]) -> u32:
    """The callback of both ops. A lock that is not to be had drops the hit without a count (KP-45)."""
    record = find_record(ip)
    if record == null or killed != 0 or (hit.probes.count > 1 and is_for_another(hit)):
        return 0
    task = current()
    bit = trylock(task, FTRACE)
    if bit == 0:
        return 0
    ftrace_hit(task, record, regs, ip, hit)
    unlock(task, bit)
    return 0


RETURN_DATA = 8
"""Bytes of entry data: the instances of the kretprobes that wait for a call."""


class SharedProbe(NativeProbe):
    """The native half of one of those ops, whose callback knows itself which probes are there."""

    def change_flags(self, on: int = 0, off: int = 0) -> None:
        """A hit that has found it goes on after the last place has gone over to another ops."""
        super().change_flags(on & ~STOPPED, off)


class SharedOps:
    """One of the two ftrace_ops, and the places that it arms."""

    def __init__(self, flags: int) -> None:
        self.ops = ftrace_ops(flags=flags | FTRACE_OPS_FL_SAVE_REGS)
        self.places: set[int] = set()

    def arm(self, address: int) -> None:
        """Raises OSError(EBUSY) if another ops modifies ip there."""
        ftrace.ftrace_set_filter_ip(self.ops, address, reset=not self.places)
        if not self.places:
            self._register()
        self.places.add(address)

    def _register(self) -> None:
        try:
            ftrace.register_ops(self.ops, self._native_half())
        except BaseException:
            ftrace.ftrace_free_filter(self.ops)
            raise

    def _native_half(self) -> NativeProbe:
        image = kprobe_runtime().image
        entry, exit_ = image.address("kprobe_ftrace_handler"), image.address("kprobe_return_handler")
        kind = CALLBACK | HAS_ENTRY | HAS_EXIT | WANTS_REGS
        return SharedProbe(
            tracer().table.lines, self, kind=kind, flags=COMPLETE, entry=entry, exit=exit_, data_size=RETURN_DATA
        )

    def kill(self) -> None:
        """Its callback sees for itself that ftrace is dead."""

    def disarm(self, address: int) -> None:
        """The last place takes the ops off. Nothing happens once ftrace is dead (KP-54)."""
        self.places.discard(address)
        if tracer().dead:
            return
        if self.places:
            ftrace.ftrace_set_filter_ip(self.ops, address, remove=True)
        else:
            ftrace.unregister_ftrace_function(self.ops)
            ftrace.ftrace_free_filter(self.ops)


@cache
def _watch_ftrace() -> None:
    dead = kprobe_runtime().image.variable("kprobe_ftrace_killed")

    def told() -> None:
        dead.value = 1
        for ops in _armed_by.values():
            ops.kill()

    tracer().when_killed.append(told)


_plain = SharedOps(0)
_ipmodify = SharedOps(FTRACE_OPS_FL_IPMODIFY)


def _ops_for(aggregate: Aggregate) -> SharedOps | LoneOps:
    """What is to arm a place, by its probes as they are."""
    if len(aggregate.children) == 1 and aggregate.children[0].lone is not None:
        return aggregate.children[0].lone
    return _ipmodify if aggregate.has_post else _plain


_armed_by: dict[int, SharedOps | LoneOps] = {}
"""By address (KP-53)."""


def arm(aggregate: Aggregate) -> None:
    """Raises OSError, having armed nothing."""
    _watch_ftrace()
    ops = _ops_for(aggregate)
    ops.arm(aggregate.address)
    _armed_by[aggregate.address] = ops


def disarm(aggregate: Aggregate) -> None:
    """By the ops that armed it (KP-53)."""
    ops = _armed_by.pop(aggregate.address, None)
    if ops is not None:
        ops.disarm(aggregate.address)


def rearm(aggregate: Aggregate) -> None:
    """Go over to another ops if the probes have come to need it (KP-53). Raises OSError, and nothing has changed.

    A hit meanwhile is for one of them (`is_for_another`).
    """
    wanted, other = _ops_for(aggregate), _armed_by[aggregate.address]
    if wanted is not other:
        wanted.arm(aggregate.address)
        _armed_by[aggregate.address] = wanted
        other.disarm(aggregate.address)
