"""kprobes on ftrace locations: armed by the function's stub instead of a breakpoint.

Two ftrace_ops are shared by all of them; the one with IPMODIFY serves places where a probe has a post_handler. A
single probe with native handlers has an ftrace_ops of its own (kprobes.fast.single).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftrace.core import ops as ftrace
from ftrace.core.ops import ftrace_ops
from ftrace.core.ops_flags import FTRACE_OPS_FL_IPMODIFY, FTRACE_OPS_FL_SAVE_REGS
from ftrace.core.probe import NativeProbe
from ftrace.core.sites.locations import LocationSet
from ftrace.core.tracer import tracer
from ftrace.hit.records import CALLBACK, COMPLETE, HAS_ENTRY, HAS_EXIT, STOPPED, WANTS_REGS
from kprobes.fast.single import SingleOps
from kprobes.hit.records import RETURN_DATA
from kprobes.hit.runtime import kprobe_runtime
from sandbox.process import hooks
from sandbox.process.once import once

if TYPE_CHECKING:
    from kprobes.place import Place


class SharedProbe(NativeProbe):
    """The native half of one of the shared ops. Its callback finds the probes of a place itself."""

    def change_flags(self, on: int = 0, off: int = 0) -> None:
        """Ignores STOPPED: a hit that has found this probe completes, even if the last place has moved to another ops."""
        super().change_flags(on & ~STOPPED, off)


class SharedOps:
    """One of the two ftrace_ops, and the places that it arms."""

    def __init__(self, flags: int) -> None:
        self.ops = ftrace_ops(flags=flags | FTRACE_OPS_FL_SAVE_REGS)
        self.places: set[int] = set()

    def arm(self, address: int) -> None:
        """Raises OSError(EBUSY) if another ops modifies ip there."""
        location = tracer().table.location(address)
        assert location is not None
        others = self.ops.filter_hash if self.places else LocationSet()
        ftrace.set_filter_selection(self.ops, others | LocationSet.of([location]))
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
        """Nothing to do: the callback checks whether ftrace is dead."""

    def disarm(self, address: int) -> None:
        """The ops is unregistered with its last place. Does nothing once ftrace is dead."""
        self.places.discard(address)
        if tracer().dead:
            return
        if self.places:
            ftrace.ftrace_set_filter_ips(self.ops, [address], remove=True)
        else:
            ftrace.unregister_ftrace_function(self.ops)
            ftrace.ftrace_free_filter(self.ops)


@once
def _watch_ftrace() -> None:
    dead = kprobe_runtime().image.variable("kprobe_ftrace_killed")

    def killed() -> None:
        dead.value = 1
        for ops in _armed_by.values():
            ops.kill()

    hooks.when_killed.add(killed)


_plain = SharedOps(0)
_ipmodify = SharedOps(FTRACE_OPS_FL_IPMODIFY)


def _ops_for(place: Place) -> SharedOps | SingleOps:
    """The ops that has to arm a place, given its present probes."""
    only = place.children.only
    if only is not None and isinstance(only.fast, SingleOps):
        return only.fast
    return _ipmodify if place.children.has_post else _plain


_armed_by: dict[int, SharedOps | SingleOps] = {}
"""Address -> the ops that arms the place there."""


def arm(place: Place) -> None:
    """Arm a place. If this raises OSError, nothing is armed."""
    _watch_ftrace()
    ops = _ops_for(place)
    ops.arm(place.address)
    _armed_by[place.address] = ops


def disarm(place: Place) -> None:
    """Disarm a place, through the ops that armed it."""
    ops = _armed_by.pop(place.address, None)
    if ops is not None:
        ops.disarm(place.address)


def rearm(place: Place) -> None:
    """Move a place to another ops if its present probes need one. If this raises OSError, nothing has changed.

    A hit during the move is served by exactly one of the two (kprobes.hit.callbacks).
    """
    next_ops, present_ops = _ops_for(place), _armed_by[place.address]
    if next_ops is not present_ops:
        next_ops.arm(place.address)
        _armed_by[place.address] = next_ops
        present_ops.disarm(place.address)
