"""Jump optimisation as its users see it: the sysctl, waiting for the optimiser, and the rule that forbade a jump."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from kprobes import states
from kprobes.breakpoint.patching import check_traps, patching
from kprobes.jump import choice
from kprobes.jump.choice import Extent
from kprobes.place import places

if TYPE_CHECKING:
    from kprobes.jump.safety import Refusal


def wait_for_kprobe_optimizer() -> None:
    """Return once all queued jumps have been written and all jumps that no probe needs have been removed.

    Raises OSError(EBUSY), which names the thread, if removing needs breakpoints and a thread blocks SIGTRAP. As
    wait_for_kprobe_optimizer() in kernel/kprobes.c.
    """
    states.finish_pending()
    states.cancel_run()


def kprobes_optimization() -> int:
    """The value of sysctl debug.kprobes-optimization: 0 or 1."""
    return int(choice.allowed)


def set_kprobes_optimization(value: int) -> None:
    """Write sysctl debug.kprobes-optimization.

    1: probes that may be optimised are queued. 0: when this returns, there is no jump, and none is written any more. Raises
    OSError(EINVAL) for another value.
    """
    if value not in (0, 1):
        raise OSError(errno.EINVAL, f"kprobes-optimization is {value}; it must be 0 or 1")
    with patching():
        if not value and any(place.covered for place in places.values()):
            check_traps()
        choice.allowed = bool(value)
        for place in list(places.values()):
            if value and place.armed and not place.on_ftrace:
                states.try_to_optimize(place)
            elif not value and place.optimized:
                states.unoptimize(place)
    if not value:
        wait_for_kprobe_optimizer()


def set_extent(extent: Extent) -> None:
    """Choose which probes become jumps from now on. Existing jumps stay."""
    with patching():
        choice.extent = extent


def why_not(address: int) -> Refusal | None:
    """The rule that forbade a jump at `address`; None if none did, or no jump was tried."""
    return choice.refusals.get(address)
