"""Which places become jumps, and where each jump goes. Unlike in the kernel, a probe on any instruction may become one if a free
landing is found for a punned jump (kprobes.jump.safety explains why that is sound).
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from kprobes.jump.functions import function_at
from kprobes.jump.jumps import LONGEST, Jump, Read, ftrace_site_in, live_text, prepare_jump
from kprobes.jump.safety import Refusal, kernel_refusal
from kprobes.place import State, between

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kprobes.place import Place


class Extent(enum.Enum):
    """Which probes become jumps."""

    KERNEL = "kernel"
    """Only those that the kernel would optimise."""
    ALONE = "alone"
    """Every probe for which a jump is found, unless another enabled probe is among the jump's bytes."""
    DENSE = "dense"
    """Next to enabled probes too: a jump borrows its neighbours' present bytes. Before those change, it is replaced by a
    breakpoint, and queued again. For probes on every instruction of a function."""


allowed = True
"""kprobes_allow_optimization. Set by kprobes.optimization, as is `extent`."""
extent = Extent.ALONE
refusals: dict[int, Refusal] = {}
"""Address -> the rule that forbade a jump there at the last attempt."""

WITH_JUMP = (State.JUMP, State.UNOPTIMIZING)
"""The states in which a jump is in the text."""


def is_dense() -> bool:
    """Whether jumps may borrow each other's bytes."""
    return extent is Extent.DENSE


def jump_of(place: Place) -> Jump:
    assert isinstance(place.jump, Jump)
    return place.jump


def prepare(place: Place) -> bool:
    """Give the place a jump that serves its present probes, not yet aimed. False if a rule forbids it; that is recorded."""
    jump = _prepared(place)
    if isinstance(jump, Refusal):
        refusals[place.address] = jump
        return False
    refusals.pop(place.address, None)
    place.jump = jump
    return True


def _prepared(place: Place) -> Jump | Refusal:
    if extent is Extent.KERNEL:
        function = function_at(place.symbol.address, place.symbol.end)
        refusal = kernel_refusal(function, place.address, ftrace_site_in)
        if refusal is not None:
            return refusal
    former = jump_of(place) if place.jump is not None else None
    if former is not None and not former.is_outdated:
        return former
    try:
        return prepare_jump(place, former)
    except OSError as error:
        return Refusal("no memory", str(error))


def aim_all(queued: Iterable[Place]) -> tuple[list[Jump], list[Place]]:
    """Aim the jumps of these places, which descend by address. Returns the jumps, and the places for which no target is found."""
    planned, jumps, without_target = _Planned(), [], []
    for place in queued:
        jump = jump_of(place)
        if jump.is_aimed(planned.read) or _aim(jump, planned.read):
            jump.choose_routine()
            planned.add(jump)
            jumps.append(jump)
        else:
            without_target.append(place)
    return jumps, without_target


def _aim(jump: Jump, read: Read) -> bool:
    """Aim a jump. False if no target was found; the refusal is recorded."""
    try:
        refusal = jump.aim(read)
    except OSError as error:
        refusal = Refusal("no memory", str(error))
    if refusal is not None:
        refusals[jump.address] = refusal
        return False
    refusals.pop(jump.address, None)
    return True


def forget(place: Place) -> None:
    """The code is about to be freed."""
    refusals.pop(place.address, None)
    if place.jump is not None:
        jump_of(place).withdraw()
        place.jump = None


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


# -- jumps that borrow bytes of their neighbours ----------------------------------------------------------------------


def borrowers_of(address: int) -> list[Place]:
    """Places whose written jumps borrow the byte at `address`."""
    return reaching(between(address - LONGEST + 1, address), address, WITH_JUMP)


def with_borrowers(places: Iterable[Place]) -> list[Place]:
    """These places, and all whose jumps borrow their bytes, ascending."""
    found: dict[int, Place] = {}
    left = list(places)
    while left:
        place = left.pop()
        if place.address not in found:
            found[place.address] = place
            left += borrowers_of(place.address)
    return [found[address] for address in sorted(found)]


def reaching(places: Iterable[Place], address: int, states: Sequence[State]) -> list[Place]:
    """The places in one of `states` whose jumps extend over `address`."""
    return [place for place in places if place.state in states and jump_of(place).end > address]
