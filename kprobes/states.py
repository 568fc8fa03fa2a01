"""The states of a place, and every change of them. All functions are called within `patching()` unless they say otherwise.

    state         in the text            a hit              what moves it on
    OFF           the original           -                  arm: STUB at an ftrace location, else BREAKPOINT
    STUB          the function's stub    calls the probes   disarm: OFF
    BREAKPOINT    int3                   calls the probes   try_to_optimize: QUEUED; disarm: OFF
    QUEUED        int3                   calls the probes   the optimiser: JUMP, or BREAKPOINT if no target is found;
                                                            unoptimize: BREAKPOINT; disarm: OFF
    JUMP          a jump to the detour   calls the probes   unoptimize: BREAKPOINT; disarm: UNOPTIMIZING
    UNOPTIMIZING  a jump to the detour   calls no probe     arm: JUMP; the optimiser, or disarm at once: OFF

Changes of probes take effect at once. Jumps are written, and those that no probe needs are removed, by the optimiser's thread
(the kernel's kprobe_optimizer() and its two lists).
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from ftrace.core.entries.neighbours import retreat_from
from ftrace.core.sites.signal_masks import keep_traps_unblocked
from kprobes.breakpoint.patching import check_traps, patching
from kprobes.fast import ftrace_site, return_stubs
from kprobes.jump import choice
from kprobes.jump.choice import WITH_JUMP, borrowers_of, jump_of, reaching
from kprobes.jump.jumps import LONGEST, restore, write_jumps
from kprobes.jump.optinsns import caches
from kprobes.jump.worker import Worker
from kprobes.place import State, between, places
from sandbox.x86_64.encoding import JMP32_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kprobes.place import Place

log = logging.getLogger("kprobes")

all_disarmed = False
"""kprobes_all_disarmed: no place is armed, even if its probes are enabled. Set by `set_kprobes_enabled`."""
_PENDING = (State.QUEUED, State.UNOPTIMIZING)
_pending: dict[int, Place] = {}
"""The places that are QUEUED or UNOPTIMIZING, by address."""


def _become(place: Place, state: State) -> None:
    """Set the state; the caller writes the text.

    While a jump is written, hits of its breakpoint execute its copies, which may be of more than the probed instruction.
    """
    place.state = state
    place.record.optimized = place.jump.copy if place.jump is not None and state in WITH_JUMP else 0
    if state in _PENDING:
        _pending[place.address] = place
        _worker.kick()
    else:
        _pending.pop(place.address, None)


# -- the probes of a place have changed -------------------------------------------------------------------------------


def children_changed(place: Place) -> None:
    """Let hits run the present children, and arm or disarm the place accordingly. Raises OSError if it cannot be armed."""
    if place.children.has_post:
        unoptimize(place)  # only a breakpoint returns to its handler after the instruction
    place.publish()
    if place.jump is not None:
        return_stubs.update_fast_returns(place)
    should_be_armed = bool(place.children.enabled) and not all_disarmed
    armed = place.armed
    if should_be_armed and not armed:
        arm(place)
    elif armed and not should_be_armed:
        disarm(place, immediate=all_disarmed)
    elif should_be_armed and place.on_ftrace:
        ftrace_site.rearm(place)
    if should_be_armed and not place.on_ftrace:
        try_to_optimize(place)


def arm(place: Place) -> None:
    """Let hits call the probes. Raises OSError: EBUSY from ftrace, or while another thread blocks SIGTRAP."""
    if place.on_ftrace:
        ftrace_site.arm(place)
        _become(place, State.STUB)
        return
    keep_traps_unblocked()
    check_traps()
    retreat_from(place.address)
    _release_borrowed(place)
    if place.state is State.UNOPTIMIZING:
        _become(place, State.JUMP)
    else:
        place.write_breakpoint()
        _become(place, State.BREAKPOINT)


def disarm(place: Place, immediate: bool) -> None:
    """Restore the text: at once if `immediate`; otherwise a jump may stay until the optimiser's next run."""
    if place.on_ftrace:
        _become(place, State.OFF)
        ftrace_site.disarm(place)
        return
    if place.state is State.JUMP:
        _become(place, State.UNOPTIMIZING)
        if not immediate:
            return
    unoptimize(place)
    _release_borrowed(place)
    place.write_original()
    _become(place, State.OFF)


def restore_disarmed(disarmed: Iterable[Place]) -> None:
    """Restore the text of those of `disarmed` that are UNOPTIMIZING, all at once.

    While a thread blocks SIGTRAP, this is left to the optimiser.
    """
    with contextlib.suppress(OSError):
        _remove_jumps(place for place in disarmed if place.state is State.UNOPTIMIZING)
    if not _pending:
        _worker.cancel()


# -- from breakpoint to jump, and back --------------------------------------------------------------------------------


def try_to_optimize(place: Place) -> None:
    """The children of an armed place have changed: queue it if it may be optimised and is not."""
    if place.optimized and not _unoptimize_outdated(place):
        jump_of(place).choose_routine()
        return
    if _may_optimize(place) and choice.prepare(place):
        jump_of(place).choose_routine()
        _become(place, State.QUEUED)


def _may_optimize(place: Place) -> bool:
    # KP-63
    if not choice.allowed or all_disarmed or place.on_ftrace:
        return False
    if not place.children.enabled or place.children.has_post:
        return False
    near = between(place.address + 1, place.address + max(JMP32_SIZE, place.length))
    return choice.is_dense() or not any(other.children.enabled for other in near)


def _unoptimize_outdated(place: Place) -> bool:
    """Whether the jump of a place does not serve its present probes; if so, it is removed, or no longer queued.

    While a thread blocks SIGTRAP, a written jump stays; it still serves them.
    """
    if not jump_of(place).is_outdated:
        return False
    try:
        unoptimize(place)
    except OSError:
        return False
    return True


def unoptimize(place: Place) -> None:
    """Remove the jump at once, leaving a breakpoint if the place is armed. Raises OSError(EBUSY) as `_restore` does."""
    if place.covered:
        others = [other for other in _restore([place]) if other is not place]
        _requeue(others)
    elif place.state is State.QUEUED:
        _become(place, State.BREAKPOINT)


def _remove_jumps(those: Iterable[Place]) -> None:
    """Remove these jumps; jumps that borrowed their bytes are queued again."""
    _requeue(_restore(those))


def _restore(those: Iterable[Place]) -> list[Place]:
    """Replace these jumps, and all that borrow their bytes, by breakpoints. Returns their places, ascending.

    Where no probe is enabled, the original text is restored. While a thread blocks SIGTRAP, this raises OSError(EBUSY) and
    changes nothing.
    """
    every = choice.with_borrowers(those)
    if every:
        check_traps()
        restore([jump_of(place) for place in every])
    for place in every:
        if place.armed:
            _become(place, State.BREAKPOINT)
        else:
            place.write_original()
            _become(place, State.OFF)
    return every


def _requeue(those: Iterable[Place]) -> None:
    for place in those:
        if place.armed:
            try_to_optimize(place)


def _release_borrowed(changing: Place) -> None:
    """The first byte of a place is about to change: remove jumps that borrow it, and unqueue those that would.

    With dense optimisation they are queued again.
    """
    near = between(changing.address - LONGEST + 1, changing.address)
    if not near:
        return
    borrowers = _restore(reaching(near, changing.address, WITH_JUMP))
    if choice.is_dense():
        _requeue(borrowers)
        return
    for place in reaching(near, changing.address, (State.QUEUED,)):
        _become(place, State.BREAKPOINT)


# -- the optimiser ----------------------------------------------------------------------------------------------------


def is_pending() -> bool:
    """Whether the optimiser has anything to do."""
    return bool(_pending)


def optimize_pending() -> None:
    """The optimiser's run: remove the jumps that are UNOPTIMIZING, then write those that are QUEUED. Takes its lock itself.

    If removing needs breakpoints while a thread blocks SIGTRAP, this raises OSError(EBUSY) and changes nothing.
    """
    with patching():
        _remove_jumps([place for place in _pending.values() if place.state is State.UNOPTIMIZING])
        _write_queued()


def _write_queued() -> None:
    # A written jump changes the bytes that jumps at lower addresses borrow: those are aimed after it.
    _remove_jumps([borrower for place in _queued() for borrower in borrowers_of(place.address)])
    for cache in caches():
        cache.refresh()
    jumps, without_target = choice.aim_all(_queued())
    for place in without_target:
        _become(place, State.BREAKPOINT)
    for jump in jumps:
        _become(jump.place, State.JUMP)
    write_jumps(jumps)


def _queued() -> list[Place]:
    """The queued places, by descending address."""
    addresses = sorted((address for address, place in _pending.items() if place.state is State.QUEUED), reverse=True)
    return [_pending[address] for address in addresses]


def finish_pending() -> None:
    """Do everything that is queued, now. Takes its lock itself."""
    while _pending:
        optimize_pending()


def cancel_run() -> None:
    """A waiting caller has emptied the queue: cancel the run of the optimiser's thread. Takes its lock itself."""
    with patching():
        if not _pending:
            _worker.cancel()


def rest() -> None:
    """End the optimiser's thread if nothing is queued."""
    _worker.join_if_idle()


_worker = Worker(lambda: optimize_pending(), is_pending)  # by name: a test may hold the optimiser


# -- the code goes away -----------------------------------------------------------------------------------------------


def forget(place: Place) -> None:
    """The code is about to be freed: remove now a jump that was left for the optimiser."""
    unoptimize(place)
    _pending.pop(place.address, None)
    choice.forget(place)


def abandon(place: Place) -> None:
    """The code is not mapped any more: disarm the place without touching its text."""
    _become(place, State.OFF)


# -- the global switch ------------------------------------------------------------------------------------------------


def kprobes_enabled(on: bool | None = None) -> bool:
    """Whether probes are armed at all: the global switch, as the file `enabled` of debugfs. `on`: switch it before.

    Off: every probe is disarmed, and none is armed until it is on again. Raises OSError if probes cannot be armed.
    """
    if on is not None:
        set_kprobes_enabled(on)
    return not all_disarmed


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


def _switch(on: bool) -> tuple[list[OSError], int]:
    """Arm or disarm every place with an enabled probe. Returns the failures, and the number of such places."""
    global all_disarmed
    failures: list[OSError] = []
    total = 0
    with patching():
        all_disarmed = not on
        for place in list(places.values()):
            if not place.children.enabled:
                continue
            total += 1
            try:
                children_changed(place)
            except OSError as error:
                failures.append(error)
    return failures, total


def disarm_for_good() -> None:
    """At interpreter exit: restore all text. Libraries still run when the handlers' code is gone."""
    _worker.stop()
    _switch(False)
    finish_pending()
