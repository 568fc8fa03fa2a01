"""Jumps in place of instructions that are shorter than a jump (punning). Bytes in, bytes out.

`jmp rel32` takes 5 bytes. Over an instruction of n < 5 bytes, its opcode and the first bytes of its displacement are written. The
following bytes either stay and are *borrowed* as the rest of the displacement, so that the jump can reach a window of
256**(n - 1) addresses; redundant prefixes before the opcode shift the displacement and give a smaller window each. Or the
following instructions are *absorbed*: their copies run after the probed one, and the first byte of each becomes an int3, so that
a thread that is there, or jumps there, is moved to the copy.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sandbox.x86_64.encoding import INT3, JMP32_SIZE, jump

_PREFIX = 0x2E
"""An override of the code segment, which 64-bit mode ignores."""
_LOWEST, _HIGHEST = 1 << 20, 1 << 47
_NEAREST = [value & 0xFF for number in range(128) for value in (number, ~number)]
"""The values of a byte at the top of a displacement, those first that lead least far."""
_FEW = _NEAREST[:32:4] + _NEAREST[1:32:4]


class Window(NamedTuple):
    """A jump with `prefixes` redundant prefixes that absorbs `absorbed` instructions can reach any address in [low, high)."""

    prefixes: int
    low: int
    high: int
    absorbed: int = 0


def borrowed(length: int) -> int:
    """The number of bytes after an instruction of `length` bytes that a jump over it needs as part of its displacement."""
    return max(JMP32_SIZE - length, 0)


def windows(address: int, length: int, following: bytes) -> list[Window]:
    """The windows of a jump at `address` in place of one instruction of `length` < 5 bytes, widest first.

    `following` are the bytes after it, at least four; with fewer there are fewer windows.
    """
    found: list[Window] = []
    for prefixes in range(length):
        chosen = 8 * (length - 1 - prefixes)
        upper = following[: JMP32_SIZE - length + prefixes]
        if len(upper) < JMP32_SIZE - length + prefixes:
            break
        low = address + prefixes + JMP32_SIZE + (int.from_bytes(upper, "little", signed=True) << chosen)
        high = low + (1 << chosen)
        if low < _HIGHEST and high > _LOWEST:
            found.append(Window(prefixes, max(low, _LOWEST), min(high, _HIGHEST)))
    return found


def wider_windows(address: int, lengths: Sequence[int], following: bytes) -> Iterator[Window]:
    """The windows of a jump at `address` that absorbs all but the first of instructions of these `lengths`.

    `following` are the bytes after the last of them.
    """
    starts = tuple(itertools.accumulate(lengths))
    pattern = _pattern(0, starts[-1], starts[:-1], following)
    yield from _windows(address, 0, pattern, len(lengths) - 1)


def _pattern(prefixes: int, own: int, starts: Sequence[int], following: bytes) -> list[int | None]:
    """What each byte of the displacement has to be; None: anything. Shorter than 4 if the text ends before."""
    pattern: list[int | None] = []
    for offset in range(prefixes + 1, prefixes + JMP32_SIZE):
        if offset in starts:
            pattern.append(INT3)
        elif offset < own:
            pattern.append(None)
        elif offset - own < len(following):
            pattern.append(following[offset - own])
    return pattern


def _windows(address: int, prefixes: int, pattern: Sequence[int | None], absorbed: int) -> Iterator[Window]:
    if len(pattern) < JMP32_SIZE - 1:
        return
    chosen = next((index for index, byte in enumerate(pattern) if byte is not None), len(pattern))
    upper = pattern[chosen:]
    size, behind = 1 << 8 * chosen, address + prefixes + JMP32_SIZE
    for values in _filled(upper):
        low = behind + (int.from_bytes(bytes(values), "little", signed=True) << 8 * chosen)
        low, high = max(low, _LOWEST), min(low + size, _HIGHEST)
        if low < high:
            yield Window(prefixes, low, high, absorbed)


def _filled(upper: Sequence[int | None]) -> Iterator[Sequence[int]]:
    """Values for the top bytes of a displacement, of which some are free; the shortest distances first."""
    known = [byte for byte in upper if byte is not None]
    if len(known) == len(upper):
        yield known
        return
    choices = [[byte] if byte is not None else _FEW for byte in reversed(upper)]
    for values in itertools.product(*choices):
        yield values[::-1]


def jump_bytes(address: int, own: int, prefixes: int, target: int) -> bytes:
    """What to write at `address` so that control goes to `target`: at most `own` bytes, the rest being there already.

    Raises OverflowError if `target` is beyond 2 GB.
    """
    whole = bytes([_PREFIX] * prefixes) + jump(address + prefixes, target)
    return whole[:own] if own < len(whole) else whole
