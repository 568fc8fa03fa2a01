"""Other kinds of probes that write into text: how ftrace's patches and theirs keep out of each other's bytes."""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Protocol

from ftrace.core.sites.detoured import DetouredBlock
from ftrace.core.sites.image_block import in_images
from ftrace.core.sites.locations import Location, LocationSet, Resolution, Skipped
from ftrace.core.tracer import tracer


class Neighbour(Protocol):
    """Another kind of probe that writes into text: kprobes."""

    def hold(self) -> contextlib.AbstractContextManager[None]:
        """Its locks, which come before those of ftrace."""

    def free(self, address: int, size: int) -> int:
        """How many of these bytes a patch at `address` may have; the first one, which `join` clears, at least."""

    def join(self, addresses: Sequence[int]) -> dict[int, str]:
        """Join the locations at these addresses, which are about to be patched: no byte of them is its any more.

        Where it cannot, the reason. Within `hold()`.
        """


neighbours: list[Neighbour] = []
"""Added by kprobes when the first of them is registered."""


@contextlib.contextmanager
def patch_lock() -> Iterator[None]:
    """Held around `join_neighbours` and the registration that follows: within it, no other probe is placed."""
    tracing = tracer()
    with contextlib.ExitStack() as stack:
        stack.enter_context(tracing.reclaimer.deferred())
        for neighbour in neighbours:
            stack.enter_context(neighbour.hold())
        stack.enter_context(tracing.table.lock)
        yield


def free_bytes(address: int, size: int) -> int:
    """How many of these bytes a patch at `address` may have: none of them is another probe's, but the first may be."""
    return min((neighbour.free(address, size) for neighbour in neighbours), default=size)


def join_neighbours(selection: LocationSet) -> Resolution:
    """Let other kinds of probes join these locations, which are about to be patched. Within `patch_lock()`.

    Returns the locations that can still be patched.
    """
    skipped: list[Skipped] = []
    refused: list[Location] = []
    for block, indexes in in_images(selection).items():
        for neighbour in neighbours:
            for address, why in neighbour.join([block.addresses[index] for index in indexes]).items():
                refused.append(Location(block, bisect_left(block.addresses, address)))
                skipped.append(Skipped(str(refused[-1]), why))
    return Resolution(selection - LocationSet.of(refused), skipped)


def retreat_from(address: int) -> None:
    """Shrink or remove any of our jumps that covers or borrows the byte at `address`, which somebody else is about to change.

    Caller holds ftrace's and kprobes' locks.
    """
    for block in tracer().table.of_images:
        if isinstance(block, DetouredBlock):
            while (index := block.reaching(address)) is not None:
                block.retreat(index)
