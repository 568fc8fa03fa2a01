"""Writing jumps over breakpoints, and breakpoints over jumps, while other threads run the code (ftrace.sites.poke)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ftrace.sites.poke import BREAKPOINTS, HEADS, STAGES
from kprobes.breakpoint import patching
from sandbox.x86_64.encoding import JMP32_SIZE

if TYPE_CHECKING:
    from kprobes.jump.jumps import Jump


def write_jumps(jumps: Sequence[Jump]) -> None:
    """Turn breakpoints into jumps. `jumps`: by descending address.

    A jump that borrows bytes of another gets its first byte after every core has seen the other one. Threads that arrive
    meanwhile are sent to the copies.
    """
    _poke(jumps, [jump.code for jump in jumps], one_by_one=HEADS)


def restore(jumps: Sequence[Jump]) -> None:
    """Turn jumps into breakpoints. `jumps`: by ascending address, so that a borrower precedes its lender."""
    _poke(jumps, [patching.INT3 + jump.covered[1:] for jump in jumps], one_by_one=BREAKPOINTS)


def _poke(jumps: Sequence[Jump], texts: Sequence[bytes], one_by_one: int) -> None:
    """Write `texts` over the jumps. In the stage `one_by_one`, jumps that share bytes are written one after the other."""
    pokes = patching.Pokes(
        (jump.place.text, jump.address, text, (0, *jump.inner)) for jump, text in zip(jumps, texts, strict=True)
    )
    for stage in STAGES:
        for first, end in _apart(jumps) if stage == one_by_one else [(0, len(jumps))]:
            pokes.run(stage, first, end)
            patching.sync()


def _apart(jumps: Sequence[Jump]) -> Iterator[tuple[int, int]]:
    """Ranges of jumps such that in none of them a jump may have borrowed its neighbour's bytes."""
    first = 0
    for end in range(1, len(jumps)):
        if abs(jumps[end].address - jumps[end - 1].address) < JMP32_SIZE:
            yield first, end
            first = end
    yield first, len(jumps)
