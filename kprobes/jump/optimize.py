"""Jump optimisation: which probes become jumps, when, and when they go back (KP-60..73).

Beyond the kernel, a probe on any single instruction may become a jump (kprobes.jump.safety says why that is sound) wherever a
punned jump finds a free place to land. `why_not` says of every other which rule was against it.
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
    close_room,
    ftrace_site_in,
    jump_room,
    live_text,
    restore,
    rooms,
    write_jumps,
)
from kprobes.jump.safety import Refusal, kernel_refusal
from kprobes.jump.worker import Worker
from kprobes.place import switch
from kprobes.place.aggregate import aggregates, between
from kprobes.place.functions import function_at
from sandbox.x86_64.relocate import JMP32_SIZE

if TYPE_CHECKING:
    from kprobes.place.aggregate import Aggregate
    from sandbox.memory.mappings import TextMapping


class Extent(enum.Enum):
    """How far optimisation goes."""

    KERNEL = "kernel"
    """Only what the kernel's rules allow too (KP-61)."""
    ALONE = "alone"
    """Every instruction for which a jump is found, unless another enabled probe is among the jump's bytes (KP-63)."""
    DENSE = "dense"
    """Beside enabled probes too: a jump borrows the bytes that its neighbours have by now. When those change it is taken
    back first, and queued again. For probes on every instruction of a function."""


class JumpOptimizer:
    """The queues. A place with a jump in its text has `covered`; one that is queued, or has one, is `optimized`."""

    def __init__(self) -> None:
        self.allowed = True
        self.extent = Extent.ALONE
        self.refusals: dict[int, Refusal] = {}
        self._jumps: dict[int, Jump] = {}
        self._queued: dict[int, Aggregate] = {}
        self._leaving: dict[int, Aggregate] = {}
        self._worker = Worker(self)

    @property
    def dense(self) -> bool:
        """Whether jumps may borrow from each other."""
        return self.extent is Extent.DENSE

    # -- what kprobes.place.switch asks -------------------------------------------------------------------------------

    def arming(self, place: Aggregate) -> bool:
        """See kprobes.place.switch.Optimizer."""
        self._disturb(place)
        return self._leaving.pop(place.address, None) is not None

    def try_to_optimize(self, place: Aggregate) -> None:
        """See kprobes.place.switch.Optimizer."""
        if place.optimized and not self._take_back_outdated(place):
            self._jumps[place.address].choose_routine()
            return
        if not self._wanted(place):
            return
        jump = self._prepared(place)
        if isinstance(jump, Refusal):
            self.refusals[place.address] = jump
            return
        self.refusals.pop(place.address, None)
        jump.choose_routine()
        self._queued[place.address] = place
        place.optimized = True
        place.record.optimized = jump.copy
        self._worker.kick()

    def _take_back_outdated(self, place: Aggregate) -> bool:
        """Whether the jump of a place was not made for the probes that it has by now: then it is neither there nor queued.

        One that is there goes on serving them while a thread blocks SIGTRAP.
        """
        if not self._jumps[place.address].is_outdated:
            return False
        try:
            self.unoptimize(place)
        except OSError:
            return False
        return True

    def disarming(self, place: Aggregate, immediate: bool) -> bool:
        """See kprobes.place.switch.Optimizer."""
        if place.covered and not immediate:
            self._leaving[place.address] = place
            self._worker.kick()
            return True
        self.unoptimize(place)
        self._disturb(place)
        return False

    def take_back(self, places: Iterable[Aggregate]) -> None:
        """See kprobes.place.switch.Optimizer."""
        leaving = [place for place in dict.fromkeys(places) if place.address in self._leaving]
        with contextlib.suppress(OSError):
            self._take_back(leaving)
        if not self.busy:
            self._worker.cancel()

    def unoptimize(self, place: Aggregate) -> None:
        """See kprobes.place.switch.Optimizer."""
        others = [other for other in self._restore([place] if place.covered else []) if other is not place]
        self._queued.pop(place.address, None)
        self._leaving.pop(place.address, None)
        for one in (place, *others):
            _clear(one)
        self._requeue(others)

    def forget(self, place: Aggregate) -> None:
        """See kprobes.place.switch.Optimizer. A jump that was to be taken back later is taken back now."""
        if place.covered:
            self.unoptimize(place)
            place.write_original()
        self._queued.pop(place.address, None)
        self._leaving.pop(place.address, None)
        self.refusals.pop(place.address, None)
        jump = self._jumps.pop(place.address, None)
        if jump is not None:
            jump.withdraw()
        _clear(place)

    def release(self, text: TextMapping) -> None:
        """See kprobes.place.switch.Optimizer."""
        close_room(text)

    # -- the rules ----------------------------------------------------------------------------------------------

    def _wanted(self, place: Aggregate) -> bool:
        """KP-63."""
        if not self.allowed or not switch.kprobes_enabled() or place.insn is None:
            return False
        if place.disabled or place.has_post:
            return False
        near = between(place.address + 1, place.address + max(JMP32_SIZE, place.length))
        return self.dense or not any(other.children and not other.disabled for other in near)

    def _prepared(self, place: Aggregate) -> Jump | Refusal:
        room, known = jump_room(place.text), self._jumps.get(place.address)
        if self.extent is Extent.KERNEL:
            function = function_at(place.symbol.address, place.symbol.end)
            refusal = kernel_refusal(function, place.address, ftrace_site_in)
            if refusal is not None:
                return refusal
        if known is not None and not known.is_outdated:
            return known
        try:
            jump = room.prepare(place, known)
        except OSError as error:
            return Refusal("no memory", str(error))
        if isinstance(jump, Jump):
            self._jumps[place.address] = jump
        return jump

    def _aim(self, jump: Jump, read: Read) -> bool:
        """Choose where a jump goes; False, and refused, if there is nowhere."""
        refusal = jump.aim(read)
        if refusal is not None:
            self.refusals[jump.address] = refusal
            return False
        self.refusals.pop(jump.address, None)
        return True

    # -- jumps over a byte that changes -------------------------------------------------------------------------

    def _over(self, address: int) -> list[Aggregate]:
        """Places whose jumps in the text borrow the byte at `address`."""
        return self._covering(between(address - LONGEST + 1, address), address)

    def _covering(self, near: Sequence[Aggregate], address: int) -> list[Aggregate]:
        return [place for place in near if place.covered and self._jumps[place.address].end > address]

    def _disturb(self, changing: Aggregate) -> None:
        """The first byte of a place changes: jumps that borrow it are taken back, and those that would are not written.

        They are not queued again (KP-69), but where optimisation is dense.
        """
        near = between(changing.address - LONGEST + 1, changing.address)
        if not near:
            return
        over = self._restore(self._covering(near, changing.address))
        if not self.dense:
            over += [p for p in near if p.address in self._queued and self._jumps[p.address].end > changing.address]
        for place in over:
            self._queued.pop(place.address, None)
            _clear(place)
        if self.dense:
            self._requeue(over)

    def _restore(self, places: Iterable[Aggregate]) -> list[Aggregate]:
        """Breakpoints in place of these jumps and of all that borrow their bytes; all of those, ascending.

        Raises OSError(EBUSY), with nothing done, while a thread blocks SIGTRAP.
        """
        found: dict[int, Aggregate] = {}
        left = list(places)
        while left:
            place = left.pop()
            if place.address not in found:
                found[place.address] = place
                left += self._over(place.address)
        every = [found[address] for address in sorted(found)]
        if every:
            patching.check_traps()
            restore([self._jumps[place.address] for place in every])
        for place in every:
            if not place.armed:  # it was to go later; a breakpoint that nobody knows of must not stay
                self._leaving.pop(place.address, None)
                place.write_original()
        return every

    def _requeue(self, places: Iterable[Aggregate]) -> None:
        for place in places:
            if place.armed:
                self.try_to_optimize(place)

    # -- the optimiser's run ------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether something is queued."""
        return bool(self._queued or self._leaving)

    def settled(self) -> None:
        """Somebody has waited until nothing was queued."""
        with patching.patching():
            if not self.busy:
                self._worker.cancel()

    def run(self) -> None:
        """First back, then forth (KP-65).

        Raises OSError(EBUSY), with nothing done, while breakpoints are needed to take something back and a thread blocks
        SIGTRAP.
        """
        with patching.patching():
            self._take_back(list(self._leaving.values()))
            self._write()

    def _take_back(self, leaving: Sequence[Aggregate]) -> None:
        if leaving:
            patching.check_traps()
        for place in leaving:
            del self._leaving[place.address]
        every = self._restore(place for place in leaving if place.covered)
        for place in every:
            _clear(place)
        for place in leaving:
            if not place.armed:
                self._requeue_over(place)
                place.write_original()
        gone = {place.address for place in leaving}
        self._requeue(place for place in every if place.address not in gone)

    def _requeue_over(self, place: Aggregate) -> None:
        """What borrows the breakpoint that is about to go."""
        over = self._restore(self._over(place.address))
        for other in over:
            _clear(other)
        self._requeue(over)

    def _requeue_left_of(self, addresses: Sequence[int]) -> None:
        """A jump that is written changes what those to the left of it borrow: take them back, to be aimed again after it."""
        over = self._restore([place for address in addresses for place in self._over(address)])
        for place in over:
            _clear(place)
        self._requeue(over)

    def _write(self) -> None:
        self._requeue_left_of(list(self._queued))
        queued, self._queued = self._queued, {}
        planned = _Planned()
        for room in rooms():
            room.refresh()
        jumps = []
        for address in sorted(queued, reverse=True):
            place, jump = queued[address], self._jumps[address]
            if jump.is_aimed(planned.read) or self._aim(jump, planned.read):
                jump.choose_routine()
                place.record.optimized = jump.copy
                planned.add(jump)
                jumps.append(jump)
            else:
                _clear(place)
        write_jumps(jumps)


def _clear(place: Aggregate) -> None:
    place.optimized = False
    place.record.optimized = 0


class _Planned:
    """The text as it will be once the jumps that have been planned are written."""

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
switch.optimizer = jump_optimizer


def wait_for_kprobe_optimizer() -> None:
    """Return when everything that was queued has become a jump, or has gone back.

    Raises OSError(EBUSY) naming the thread, if one blocks SIGTRAP and breakpoints are needed to take something back.
    """
    while jump_optimizer.busy:
        jump_optimizer.run()
    jump_optimizer.settled()


def kprobes_optimization() -> int:
    """sysctl debug.kprobes-optimization, as it reads."""
    return int(jump_optimizer.allowed)


def set_kprobes_optimization(value: int) -> None:
    """Write sysctl debug.kprobes-optimization (KP-73).

    1: everything that may be is queued. 0: no jump is left when this returns, and none is made. Raises OSError(EINVAL) for
    another value.
    """
    if value not in (0, 1):
        raise OSError(errno.EINVAL, f"kprobes-optimization is 0 or 1, not {value}")
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
    """How far optimisation goes from now on; what is a jump already stays one."""
    with patching.patching():
        jump_optimizer.extent = extent


def why_not(address: int) -> Refusal | None:
    """Which rule was against a jump at `address`; None if none was, or nobody asked."""
    return jump_optimizer.refusals.get(address)
