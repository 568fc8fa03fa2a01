"""Jump optimisation: which probes become jumps, when, and when they become breakpoints again.

Unlike in the kernel, a probe on any instruction may become a jump if a free landing is found for a punned jump
(kprobes.jump.safety explains why that is sound). `why_not` reports the rule that forbade a jump.
"""

from __future__ import annotations

import contextlib
import enum
import errno
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kprobes.breakpoint import patching
from kprobes.jump.jumps import (
    LONGEST,
    Jump,
    Read,
    ftrace_site_in,
    live_text,
    prepare,
    restore,
    write_jumps,
)
from kprobes.jump.optinsns import caches
from kprobes.jump.safety import Refusal, kernel_refusal
from kprobes.jump.worker import Worker
from kprobes.place import aggregate
from kprobes.place.aggregate import State, aggregates, between
from kprobes.place.functions import function_at
from sandbox.x86_64.encoding import JMP32_SIZE

if TYPE_CHECKING:
    from kprobes.place.aggregate import Aggregate


class Extent(enum.Enum):
    """Which probes become jumps."""

    KERNEL = "kernel"
    """Only those that the kernel would optimise."""
    ALONE = "alone"
    """Every probe for which a jump is found, unless another enabled probe is among the jump's bytes."""
    DENSE = "dense"
    """Next to enabled probes too: a jump borrows its neighbours' present bytes. Before those change, it is replaced by a
    breakpoint, and queued again. For probes on every instruction of a function."""


_PENDING = (State.QUEUED, State.UNOPTIMIZING)
_WITH_JUMP = (State.JUMP, State.UNOPTIMIZING)


class JumpOptimizer:
    """Every change of the state of places that are not ftrace locations.

    Changes of probes are made at once, within `patching()`; jumps are written and removed later, by the worker.
    """

    def __init__(self) -> None:
        self.allowed = True
        self.extent = Extent.ALONE
        self.refusals: dict[int, Refusal] = {}
        self._pending: dict[int, Aggregate] = {}
        """The places that are QUEUED or UNOPTIMIZING, by address."""
        self._worker = Worker(self)

    @property
    def dense(self) -> bool:
        """Whether jumps may borrow each other's bytes."""
        return self.extent is Extent.DENSE

    def _set(self, place: Aggregate, state: State) -> None:
        place.become(state)
        if state in _PENDING:
            self._pending[place.address] = place
            self._worker.kick()
        else:
            self._pending.pop(place.address, None)

    # -- changes of a place's probes ----------------------------------------------------------------------------

    def arm(self, place: Aggregate) -> None:
        """Write the breakpoint, or keep a jump that is still there.

        Other jumps over the place's first byte are removed at once.
        """
        self._release_borrowed(place)
        if place.state is State.UNOPTIMIZING:
            self._set(place, State.JUMP)
        else:
            place.write_breakpoint()
            self._set(place, State.BREAKPOINT)

    def disarm(self, place: Aggregate, immediate: bool) -> None:
        """Restore the text. Unless `immediate`, a jump is left for the worker to remove."""
        if place.state is State.JUMP:
            self._set(place, State.UNOPTIMIZING)
            if not immediate:
                return
        self.unoptimize(place)
        self._release_borrowed(place)
        place.write_original()
        self._set(place, State.OFF)

    def try_to_optimize(self, place: Aggregate) -> None:
        """The children of an armed place have changed: queue it if it may be optimised and is not."""
        if place.optimized and not self._unoptimize_outdated(place):
            _jump_of(place).choose_routine()
            return
        if not self._wanted(place):
            return
        jump = self._prepared(place)
        if isinstance(jump, Refusal):
            self.refusals[place.address] = jump
            return
        self.refusals.pop(place.address, None)
        place.jump = jump
        jump.choose_routine()
        self._set(place, State.QUEUED)

    def _unoptimize_outdated(self, place: Aggregate) -> bool:
        """Whether the jump of a place does not serve its present probes; if so, it is removed, or no longer queued.

        While a thread blocks SIGTRAP, a written jump stays; it still serves them.
        """
        if not _jump_of(place).is_outdated:
            return False
        try:
            self.unoptimize(place)
        except OSError:
            return False
        return True

    def unoptimize_disarmed(self, places: Iterable[Aggregate]) -> None:
        """Restore the text of those of `places` that are UNOPTIMIZING, all at once.

        While a thread blocks SIGTRAP, this is left to the worker.
        """
        with contextlib.suppress(OSError):
            self._unoptimize_all(place for place in places if place.state is State.UNOPTIMIZING)
        if not self.busy:
            self._worker.cancel()

    def unoptimize(self, place: Aggregate) -> None:
        """Remove the jump at once, leaving a breakpoint if the place is armed. A post_handler needs this."""
        if place.covered:
            others = [other for other in self._restore([place]) if other is not place]
            self._requeue(others)
        elif place.state is State.QUEUED:
            self._set(place, State.BREAKPOINT)

    def forget(self, place: Aggregate) -> None:
        """The code is about to be freed: remove now a jump that was left for the worker."""
        self.unoptimize(place)
        self._pending.pop(place.address, None)
        self.refusals.pop(place.address, None)
        if place.jump is not None:
            _jump_of(place).withdraw()
            place.jump = None

    def abandon(self, place: Aggregate) -> None:
        """The code is not mapped any more: disarm the place without touching its text."""
        self._set(place, State.OFF)

    # -- the rules ----------------------------------------------------------------------------------------------

    def _wanted(self, place: Aggregate) -> bool:
        # KP-63
        if not self.allowed or aggregate.all_disarmed or place.on_ftrace:
            return False
        if place.disabled or place.has_post:
            return False
        near = between(place.address + 1, place.address + max(JMP32_SIZE, place.length))
        return self.dense or not any(other.children and not other.disabled for other in near)

    def _prepared(self, place: Aggregate) -> Jump | Refusal:
        if self.extent is Extent.KERNEL:
            function = function_at(place.symbol.address, place.symbol.end)
            refusal = kernel_refusal(function, place.address, ftrace_site_in)
            if refusal is not None:
                return refusal
        known = _jump_of(place) if place.jump is not None else None
        if known is not None and not known.is_outdated:
            return known
        try:
            return prepare(place, known)
        except OSError as error:
            return Refusal("no memory", str(error))

    def _aim(self, jump: Jump, read: Read) -> bool:
        """Aim a jump. False if no target was found; the refusal is recorded."""
        try:
            refusal = jump.aim(read)
        except OSError as error:
            refusal = Refusal("no memory", str(error))
        if refusal is not None:
            self.refusals[jump.address] = refusal
            return False
        self.refusals.pop(jump.address, None)
        return True

    # -- jumps over a byte that changes -------------------------------------------------------------------------

    def _borrowers_of(self, address: int) -> list[Aggregate]:
        """Places whose written jumps borrow the byte at `address`."""
        return _reaching(between(address - LONGEST + 1, address), address, _WITH_JUMP)

    def _release_borrowed(self, changing: Aggregate) -> None:
        """The first byte of a place is about to change: remove jumps that borrow it, and unqueue those that would.

        With dense optimisation they are queued again.
        """
        near = between(changing.address - LONGEST + 1, changing.address)
        if not near:
            return
        borrowers = self._restore(_reaching(near, changing.address, _WITH_JUMP))
        if self.dense:
            self._requeue(borrowers)
            return
        for place in _reaching(near, changing.address, (State.QUEUED,)):
            self._set(place, State.BREAKPOINT)

    def _restore(self, places: Iterable[Aggregate]) -> list[Aggregate]:
        """Replace these jumps, and all that borrow their bytes, by breakpoints. Returns their places, ascending.

        Where no probe is enabled, the original text is restored. While a thread blocks SIGTRAP, this raises OSError(EBUSY) and
        changes nothing.
        """
        every = self._with_borrowers(places)
        if every:
            patching.check_traps()
            restore([_jump_of(place) for place in every])
        for place in every:
            if place.armed:
                self._set(place, State.BREAKPOINT)
            else:
                place.write_original()
                self._set(place, State.OFF)
        return every

    def _with_borrowers(self, places: Iterable[Aggregate]) -> list[Aggregate]:
        """These places, and all whose jumps borrow their bytes, ascending."""
        found: dict[int, Aggregate] = {}
        left = list(places)
        while left:
            place = left.pop()
            if place.address not in found:
                found[place.address] = place
                left += self._borrowers_of(place.address)
        return sorted(found.values(), key=_address)

    def _requeue(self, places: Iterable[Aggregate]) -> None:
        for place in places:
            if place.armed:
                self.try_to_optimize(place)

    # -- the optimiser's run ------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether anything is queued."""
        return bool(self._pending)

    def cancel_run(self) -> None:
        """The queue has been emptied by a waiting caller: cancel the worker's run."""
        with patching.patching():
            if not self.busy:
                self._worker.cancel()

    def stop(self) -> None:
        """At interpreter exit: stop the worker. Only `finish` changes anything afterwards."""
        self._worker.stop()

    def finish(self) -> None:
        """Do everything that is queued, now."""
        while self.busy:
            self.run()

    def run(self) -> None:
        """Remove the jumps that are UNOPTIMIZING, then write those that are QUEUED.

        If removing needs breakpoints while a thread blocks SIGTRAP, this raises OSError(EBUSY) and changes nothing.
        """
        with patching.patching():
            self._unoptimize_all([place for place in self._pending.values() if place.state is State.UNOPTIMIZING])
            self._write()

    def _unoptimize_all(self, places: Iterable[Aggregate]) -> None:
        """Remove these jumps; jumps that borrowed their bytes are queued again."""
        self._requeue(self._restore(places))

    def _queued(self) -> list[Aggregate]:
        """The queued places, by descending address."""
        queued = [place for place in self._pending.values() if place.state is State.QUEUED]
        return sorted(queued, key=_address, reverse=True)

    def _write(self) -> None:
        # A written jump changes the bytes that jumps at lower addresses borrow: those are aimed after it.
        self._unoptimize_all([borrower for place in self._queued() for borrower in self._borrowers_of(place.address)])
        for cache in caches():
            cache.refresh()
        jumps = self._aimed()
        for jump in jumps:
            self._set(jump.place, State.JUMP)
        write_jumps(jumps)

    def _aimed(self) -> list[Jump]:
        """The queued jumps, by descending address. One for which no target is found is unqueued."""
        planned, jumps = _Planned(), []
        for place in self._queued():
            jump = _jump_of(place)
            if jump.is_aimed(planned.read) or self._aim(jump, planned.read):
                jump.choose_routine()
                planned.add(jump)
                jumps.append(jump)
            else:
                self._set(place, State.BREAKPOINT)
        return jumps


def _jump_of(place: Aggregate) -> Jump:
    assert isinstance(place.jump, Jump)
    return place.jump


def _address(place: Aggregate) -> int:
    return place.address


def _reaching(places: Iterable[Aggregate], address: int, states: Sequence[State]) -> list[Aggregate]:
    """The places in one of `states` whose jumps extend over `address`."""
    return [place for place in places if place.state in states and _jump_of(place).end > address]


class _Planned:
    """The text as it will be once the jumps that have been added are written."""

    def __init__(self) -> None:
        self._bytes: dict[int, int] = {}

    def add(self, jump: Jump) -> None:
        self._bytes.update(enumerate(jump.code, jump.address))

    def read(self, address: int, size: int) -> bytes:
        live = live_text(address, size)
        if not self._bytes.keys().isdisjoint(range(address, address + size)):
            live = bytes(self._bytes.get(address + index, byte) for index, byte in enumerate(live))
        return live


jump_optimizer = JumpOptimizer()


def wait_for_kprobe_optimizer() -> None:
    """Return once all queued jumps have been written and all jumps that no probe needs have been removed.

    Raises OSError(EBUSY), which names the thread, if removing needs breakpoints and a thread blocks SIGTRAP. As
    wait_for_kprobe_optimizer() in kernel/kprobes.c.
    """
    jump_optimizer.finish()
    jump_optimizer.cancel_run()


def kprobes_optimization() -> int:
    """The value of sysctl debug.kprobes-optimization: 0 or 1."""
    return int(jump_optimizer.allowed)


def set_kprobes_optimization(value: int) -> None:
    """Write sysctl debug.kprobes-optimization.

    1: probes that may be optimised are queued. 0: when this returns, there is no jump, and none is written any more. Raises
    OSError(EINVAL) for another value.
    """
    if value not in (0, 1):
        raise OSError(errno.EINVAL, f"kprobes-optimization is {value}; it must be 0 or 1")
    with patching.patching():
        if not value and any(place.covered for place in aggregates.values()):
            patching.check_traps()
        jump_optimizer.allowed = bool(value)
        for place in list(aggregates.values()):
            if value and place.armed and not place.on_ftrace:
                jump_optimizer.try_to_optimize(place)
            elif not value and place.optimized:
                jump_optimizer.unoptimize(place)
    if not value:
        wait_for_kprobe_optimizer()


def set_extent(extent: Extent) -> None:
    """Choose which probes become jumps from now on. Existing jumps stay."""
    with patching.patching():
        jump_optimizer.extent = extent


def why_not(address: int) -> Refusal | None:
    """The rule that forbade a jump at `address`; None if none did, or no jump was tried."""
    return jump_optimizer.refusals.get(address)
