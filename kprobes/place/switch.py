"""Arming and disarming places: when their children change, by the global switch, as addresses become ftrace locations."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ftrace.core.entries.neighbours import neighbours, retreat_from
from kprobes.breakpoint.patching import check_traps, patching
from kprobes.fast import ftrace_site, return_stubs
from kprobes.jump.jumps import LONGEST
from kprobes.jump.optimize import jump_optimizer
from kprobes.place import aggregate
from kprobes.place.aggregate import State, aggregates, between
from kprobes.probe import KPROBE_FLAG_FTRACE

if TYPE_CHECKING:
    from kprobes.place.aggregate import Aggregate


log = logging.getLogger("kprobes")


def kprobes_enabled() -> bool:
    """Whether probes are armed at all (the file `enabled` of debugfs)."""
    return not aggregate.all_disarmed


def children_changed(place: Aggregate) -> None:
    """Let hits run the present children, and arm or disarm the place accordingly. Raises OSError if it cannot be armed."""
    if place.has_post:
        jump_optimizer.unoptimize(place)
    place.publish()
    return_stubs.update_fast_returns(place)
    wanted = bool(place.children) and not place.disabled and not aggregate.all_disarmed
    armed = place.armed
    if wanted and not armed:
        arm(place)
    elif armed and not wanted:
        disarm(place, immediate=aggregate.all_disarmed)
    elif wanted and place.on_ftrace:
        ftrace_site.rearm(place)
    if wanted and not place.on_ftrace:
        jump_optimizer.try_to_optimize(place)


def arm(place: Aggregate) -> None:
    """Arm a place. Raises OSError: EBUSY from ftrace, or while another thread blocks SIGTRAP."""
    if place.on_ftrace:
        ftrace_site.arm(place)
        place.become(State.STUB)
    else:
        check_traps()
        retreat_from(place.address)
        jump_optimizer.arm(place)


def disarm(place: Aggregate, immediate: bool) -> None:
    """Restore the text: at once if `immediate`; otherwise a jump may stay until the optimiser's next run."""
    if place.on_ftrace:
        place.become(State.OFF)
        ftrace_site.disarm(place)
    else:
        jump_optimizer.disarm(place, immediate)


def disarm_for_good() -> None:
    """At interpreter exit: restore all text. Libraries still run when the handlers' code is gone."""
    jump_optimizer.stop()
    _switch(False)
    jump_optimizer.finish()


def _switch(on: bool) -> tuple[list[OSError], int]:
    """Arm or disarm every place with an enabled probe. Returns the failures, and the number of such places."""
    failures: list[OSError] = []
    total = 0
    with patching():
        aggregate.all_disarmed = not on
        for place in list(aggregates.values()):
            if not place.children or place.disabled:
                continue
            total += 1
            try:
                children_changed(place)
            except OSError as error:
                failures.append(error)
    return failures, total


def set_kprobes_enabled(on: bool) -> None:
    """The global switch. Off: every probe is disarmed, and none is armed until it is on again."""
    with patching():
        if kprobes_enabled() == on:
            return
        failures, total = _switch(on)
    word = "enabled" if on else "disabled"
    if not failures:
        log.info("Kprobes globally %s", word)
        return
    log.warning("Kprobes globally %s, but failed to enable %d out of %d probes. Please check which kprobes are kept disabled "
                "via debugfs.", word, len(failures), total)  # fmt: skip
    raise failures[-1]


_POST = "a kprobe with a post_handler is at its entry; it needs the first instruction to be executed there"


class Kprobes:
    """The interface of kprobes to ftrace.core.entries.neighbours."""

    def hold(self) -> contextlib.AbstractContextManager[None]:
        return patching()

    def free(self, address: int, size: int) -> int:
        return min(
            (place.address - address for place in between(address + 1, address + size) if place.is_written),
            default=size,
        )

    def join(self, addresses: Sequence[int]) -> dict[int, str]:
        refused = {}
        for address in addresses:
            for place in between(address - LONGEST + 1, address):
                if place.covered:
                    jump_optimizer.unoptimize(place)
            place_here = aggregates.get(address)
            if place_here is not None and not place_here.on_ftrace:
                if place_here.has_post:
                    refused[address] = _POST
                else:
                    _join(place_here)
        return refused


def _join(place: Aggregate) -> None:
    """Turn the kprobes at a place into probes of the ftrace location there."""
    armed = place.armed
    if place.is_written:
        disarm(place, immediate=True)
    place.on_ftrace = True
    for probe in place.children:
        probe.flags |= KPROBE_FLAG_FTRACE
    if armed:
        arm(place)


def join_ftrace() -> None:
    """Register `Kprobes` with ftrace.core.entries.neighbours."""
    if not neighbours:
        neighbours.append(Kprobes())
