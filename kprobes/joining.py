"""Kprobes where ftrace patches a function's entry: they become probes of the ftrace location there."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ftrace.core.entries.neighbours import neighbours
from kprobes import states
from kprobes.breakpoint.patching import patching
from kprobes.jump.jumps import LONGEST
from kprobes.place import between, places
from kprobes.probe import KPROBE_FLAG_FTRACE

if TYPE_CHECKING:
    from kprobes.place import Place

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
                    states.unoptimize(place)
            here = places.get(address)
            if here is not None and not here.on_ftrace:
                if here.children.has_post:
                    refused[address] = _POST
                else:
                    _join(here)
        return refused


def _join(place: Place) -> None:
    """Turn the kprobes at a place into probes of the ftrace location there."""
    armed = place.armed
    if place.is_written:
        states.disarm(place, immediate=True)
    place.on_ftrace = True
    for probe in place.children:
        probe.flags |= KPROBE_FLAG_FTRACE
    if armed:
        states.arm(place)


def join_ftrace() -> None:
    """Register `Kprobes` with ftrace.core.entries.neighbours."""
    if not neighbours:
        neighbours.append(Kprobes())
