"""Arming and disarming: what follows from a place's children, and the global switch (KP-17, KP-48, KP-49, KP-59)."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from kprobes.breakpoint.patching import check_traps, patching
from kprobes.fast import fast_returns, ftrace_site
from kprobes.place.aggregate import aggregates

if TYPE_CHECKING:
    from kprobes.place.aggregate import Aggregate
    from sandbox.memory.mappings import TextMapping

log = logging.getLogger("kprobes")


class Optimizer(Protocol):
    """What jump optimisation does at the turns of a probe's life. All are called within `patching()`."""

    def arming(self, place: Aggregate) -> bool:
        """`place` is about to be armed: what is optimised over its address is un-optimised at once (KP-69).

        True if its own jump is still in the text (a lazy un-optimisation that is taken back, KP-70): then no breakpoint is
        written.
        """

    def try_to_optimize(self, place: Aggregate) -> None:
        """`place` is armed, or its children have changed: queue it if it may be optimised and is not (KP-17, KP-63)."""

    def disarming(self, place: Aggregate, immediate: bool) -> bool:
        """`place` is not to be armed any more (it says so already). True if its jump stays until the worker takes it back

        and restores the text, which is never so if `immediate` (KP-69, KP-70).
        """

    def take_back(self, places: Iterable[Aggregate]) -> None:
        """Those of `places` whose jump stays (`disarming`) get their text back now, all at once.

        While a thread blocks SIGTRAP the worker does it later.
        """

    def unoptimize(self, place: Aggregate) -> None:
        """At once, leaving a breakpoint: a post_handler is coming (KP-48, KP-71). Nothing happens if it is not optimised."""

    def forget(self, place: Aggregate) -> None:
        """The code is going away as it is (KP-95)."""

    def release(self, text: TextMapping) -> None:
        """The mapping goes away; nobody is in it any more."""


optimizer: Optimizer | None = None
"""Set by kprobes.jump.optimize."""

_state = {"enabled": True}


def kprobes_enabled() -> bool:
    """Whether probes are armed at all (debugfs `kprobes/enabled`)."""
    return _state["enabled"]


def children_changed(place: Aggregate) -> None:
    """Publish the children as they are now, and arm or disarm the place accordingly. Raises OSError if it cannot be armed."""
    if optimizer is not None and place.has_post:
        optimizer.unoptimize(place)
    place.publish()
    fast_returns.update(place)
    wanted = bool(place.children) and not place.disabled and _state["enabled"]
    if wanted and not place.armed:
        arm(place)
    elif place.armed and not wanted:
        disarm(place, immediate=not _state["enabled"])
    elif place.armed and place.on_ftrace:
        ftrace_site.rearm(place)
    if optimizer is not None and place.armed and not place.on_ftrace:
        optimizer.try_to_optimize(place)


def arm(place: Aggregate) -> None:
    """Let hits be noticed. Raises OSError: EBUSY by ftrace, or while a thread that may come here blocks SIGTRAP."""
    if place.on_ftrace:
        ftrace_site.arm(place)
    else:
        check_traps()
        if optimizer is None or not optimizer.arming(place):
            place.write_breakpoint()
    place.armed = True


def disarm(place: Aggregate, immediate: bool) -> None:
    """Restore the text, at once if `immediate`; else an optimised probe's jump may stay until the optimiser's next turn."""
    place.armed = False
    if place.on_ftrace:
        ftrace_site.disarm(place)
    elif optimizer is None or not optimizer.disarming(place, immediate):
        place.write_original()


def disarm_for_good() -> None:
    """The interpreter is about to end, and with it the code that armed places lead to: libraries run on without probes."""
    _switch(False)


def _switch(on: bool) -> tuple[list[OSError], int]:
    """Arm or disarm every place; what went wrong, and how many there were."""
    failures: list[OSError] = []
    total = 0
    with patching():
        _state["enabled"] = on
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
    """The global switch (KP-59): off disarms every probe, and none is armed until it is on again."""
    with patching():
        if _state["enabled"] == on:
            return
        failures, total = _switch(on)
    word = "enabled" if on else "disabled"
    if not failures:
        log.info("Kprobes globally %s", word)
        return
    log.warning("Kprobes globally %s, but failed to enable %d out of %d probes. Please check which kprobes are kept disabled "
                "via debugfs.", word, len(failures), total)  # fmt: skip
    raise failures[-1]
