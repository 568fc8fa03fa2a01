"""Writing jumps over breakpoints, and breakpoints over jumps, while other threads run the code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from kprobes.breakpoint import patching
from sandbox.x86_64.encoding import JMP32_SIZE

if TYPE_CHECKING:
    from kprobes.jump.jumps import Jump


def write_jumps(jumps: Sequence[Jump]) -> None:
    """Turn breakpoints into jumps; by descending address.

    First breakpoints at the instructions that are absorbed, then the rest of the tails, at last the first bytes: whoever
    comes by meanwhile is sent to the copies. A jump whose borrowed bytes are another's is begun when every core has seen
    that one.
    """
    _write((jump, offset, jump.code[offset : offset + 1]) for jump in jumps for offset in jump.inner)
    _write((jump, *stretch) for jump in jumps for stretch in _tails(jump, jump.code))
    last = 1 << 64
    for jump in jumps:
        if last - jump.address < JMP32_SIZE:
            patching.sync()
        patching.write(jump.place.text, jump.address, jump.code[:1])
        last = jump.address
    patching.sync()


def restore(jumps: Sequence[Jump]) -> None:
    """Turn jumps into breakpoints; by ascending address, so that who borrows goes before the lender."""
    last = -JMP32_SIZE
    for jump in jumps:
        if jump.address - last < JMP32_SIZE:
            patching.sync()
        patching.write(jump.place.text, jump.address, patching.INT3)
        last = jump.address
    patching.sync()
    _write((jump, *stretch) for jump in jumps for stretch in _tails(jump, jump.covered))
    _write((jump, offset, jump.covered[offset : offset + 1]) for jump in jumps for offset in jump.inner)


def _write(stretches: Iterable[tuple[Jump, int, bytes]]) -> None:
    """Store bytes at offsets of jumps, and let every core see them."""
    for jump, offset, data in stretches:
        patching.write(jump.place.text, jump.address + offset, data)
    patching.sync()


def _tails(jump: Jump, text: bytes) -> Iterator[tuple[int, bytes]]:
    """What `text`, the jump's bytes or those under it, has behind the first one, but for absorbed instructions' first."""
    start = 1
    for stop in (*jump.inner, len(text)):
        if start < stop:
            yield start, text[start:stop]
        start = stop + 1
