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

_PREFIX = b"\x2e"
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


_new = tuple.__new__
"""Makes a Window in half the time: an entry may have thousands."""


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
            found.append(_new(Window, (prefixes, max(low, _LOWEST), min(high, _HIGHEST), 0)))
    return found


def wider_windows(address: int, lengths: Sequence[int], following: bytes) -> Iterator[Window]:
    """The windows of a jump at `address` that absorbs all but the first of instructions of these `lengths`.

    `following` are the bytes after the last of them.
    """
    starts = tuple(itertools.accumulate(lengths))
    pattern = _pattern(starts[-1], starts[:-1], following)
    return _windows(address, pattern, len(lengths) - 1) if len(pattern) == JMP32_SIZE - 1 else iter(())


def _pattern(own: int, starts: Sequence[int], following: bytes) -> list[int | None]:
    """The required value of each byte of the displacement; None: any value. Shorter than 4 if the text ends before."""
    pattern: list[int | None] = []
    for offset in range(1, JMP32_SIZE):
        if offset in starts:
            pattern.append(INT3)
        elif offset < own:
            pattern.append(None)
        elif offset - own < len(following):
            pattern.append(following[offset - own])
    return pattern


def _windows(address: int, pattern: Sequence[int | None], absorbed: int) -> Iterator[Window]:
    """The shortest distances first. The lowest bytes of the displacement, if they may be anything, are the window."""
    chosen = next((index for index, byte in enumerate(pattern) if byte is not None), len(pattern))
    size, end = 1 << 8 * chosen, address + JMP32_SIZE
    for parts in itertools.product(*[_parts(pattern[at], at) for at in range(len(pattern) - 1, chosen - 1, -1)]):
        start = end + sum(parts)
        low, high = max(start, _LOWEST), min(start + size, _HIGHEST)
        if low < high:
            yield _new(Window, (0, low, high, absorbed))


def _parts(byte: int | None, at: int) -> Sequence[int]:
    """The contribution of the byte at offset `at` of a displacement, if it is `byte`; None: one of a few."""
    return _FEW_PARTS[at] if byte is None else (_signed(byte, at),)


def _signed(byte: int, at: int) -> int:
    """The last byte has the sign."""
    return (byte - 256 if at == JMP32_SIZE - 2 and byte >= 128 else byte) << 8 * at


_FEW_PARTS = tuple(tuple(_signed(byte, at) for byte in _FEW) for at in range(JMP32_SIZE - 1))


def jump_bytes(address: int, own: int, prefixes: int, target: int) -> bytes:
    """The bytes to write at `address` for a jump to `target`: at most `own` of them; the rest are there already.

    Raises OverflowError if `target` is beyond 2 GB.
    """
    whole = _PREFIX * prefixes + jump(address + prefixes, target)
    return whole[:own] if own < len(whole) else whole
