"""Existing kprobes at and near an address that becomes an ftrace location (ftrace.entries.neighbours)."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ftrace.entries.neighbours import neighbours
from kprobes.breakpoint.patching import patching
from kprobes.jump.optimize import jump_optimizer
from kprobes.place import switch
from kprobes.place.aggregate import aggregates, between
from kprobes.probe import KPROBE_FLAG_FTRACE

if TYPE_CHECKING:
    from kprobes.place.aggregate import Aggregate

_LONGEST = 8
"""The longest jump with prefixes, in bytes, including the bytes it borrows."""
_POST = "a kprobe with a post_handler is at its entry; it needs the first instruction to be executed there"


class Kprobes:
    """The interface of kprobes to ftrace.entries.neighbours."""

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
            for place in between(address - _LONGEST + 1, address):
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
        switch.disarm(place, immediate=True)
    place.on_ftrace = True
    for probe in place.children:
        probe.flags |= KPROBE_FLAG_FTRACE
    if armed:
        switch.arm(place)


def join_ftrace() -> None:
    """Register `Kprobes` with ftrace.entries.neighbours."""
    if not neighbours:
        neighbours.append(Kprobes())
