"""Arming and disarming: what follows from a place's children, and the global switch (KP-17, KP-48, KP-49, KP-59)."""

from __future__ import annotations

import logging

from ftrace.runtime import runtime
from ftrace.trapping import refuse_blocked_traps
from kprobes import ftrace_site
from kprobes.aggregate import Aggregate, aggregates
from kprobes.patching import patching

log = logging.getLogger("kprobes")

_state = {"enabled": True}


def kprobes_enabled() -> bool:
    """Whether probes are armed at all (debugfs `kprobes/enabled`)."""
    return _state["enabled"]


def children_changed(place: Aggregate) -> None:
    """Publish the children as they are now, and arm or disarm the place accordingly. Raises OSError if it cannot be armed."""
    place.publish()
    wanted = bool(place.children) and not place.disabled and _state["enabled"]
    if wanted and not place.armed:
        arm(place)
    elif place.armed and not wanted:
        disarm(place)
    elif place.armed and place.on_ftrace:
        ftrace_site.rearm(place)


def arm(place: Aggregate) -> None:
    """Let hits be noticed. Raises OSError: EBUSY by ftrace, or while a thread that may come here blocks SIGTRAP."""
    if place.on_ftrace:
        ftrace_site.arm(place)
    else:
        refuse_blocked_traps(runtime())
        runtime().signals.check()
        place.write_breakpoint()
    place.armed = True


def disarm(place: Aggregate) -> None:
    """Restore the text."""
    place.armed = False
    if place.on_ftrace:
        ftrace_site.disarm(place)
    else:
        place.write_original()


def set_kprobes_enabled(on: bool) -> None:
    """The global switch (KP-59): off disarms every probe, and none is armed until it is on again."""
    if _state["enabled"] == on:
        return
    _state["enabled"] = on
    failures: list[OSError] = []
    total = 0
    with patching():
        for place in list(aggregates.values()):
            if not place.children or place.disabled:
                continue
            total += 1
            try:
                children_changed(place)
            except OSError as error:
                failures.append(error)
    word = "enabled" if on else "disabled"
    if not failures:
        log.info("Kprobes globally %s", word)
        return
    log.warning("Kprobes globally %s, but failed to enable %d out of %d probes. Please check which kprobes are kept disabled "
                "via debugfs.", word, len(failures), total)  # fmt: skip
    raise failures[-1]
