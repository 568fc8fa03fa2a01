"""Jumps in place of instructions that are shorter than a jump (punning). Bytes in, bytes out.

`jmp rel32` takes 5 bytes. In place of an instruction of n < 5 bytes its opcode and the first bytes of its displacement are
written, and the bytes that follow, which stay as they are, are the rest: the jump can go to a window of 256**(n - 1)
addresses, and redundant prefixes in front of the opcode, which shift the displacement, give a smaller window each. Whoever
enters at the following instruction finds it untouched.
"""

from __future__ import annotations

from typing import NamedTuple

from kprobes.x86_64.relocate import JMP32_SIZE, jump

_PREFIX = 0x2E
"""An override of the code segment, which 64-bit mode ignores."""
_LOWEST, _HIGHEST = 1 << 20, 1 << 47


class Window(NamedTuple):
    """Where a jump behind `prefixes` redundant prefixes can go: any address in [low, high)."""

    prefixes: int
    low: int
    high: int


def borrowed(length: int) -> int:
    """How many bytes behind an instruction of `length` bytes a jump in its place takes as part of its displacement."""
    return max(JMP32_SIZE - length, 0)


def windows(address: int, length: int, following: bytes) -> list[Window]:
    """The windows of a jump at `address` in place of an instruction of `length` < 5 bytes, widest first.

    `following` are the bytes behind it, four at least; with fewer there are fewer windows.
    """
    found = []
    for prefixes in range(length):
        chosen = length - 1 - prefixes
        fixed = following[: 4 - chosen]
        if len(fixed) == 4 - chosen:
            found.append(_window(address, prefixes, chosen, fixed))
    return [window for window in found if window.low < window.high]


def _window(address: int, prefixes: int, chosen: int, fixed: bytes) -> Window:
    lowest = int.from_bytes(bytes(chosen) + fixed, "little", signed=True)
    low = address + prefixes + JMP32_SIZE + lowest
    return Window(prefixes, max(low, _LOWEST), min(low + (1 << 8 * chosen), _HIGHEST))


def jump_bytes(address: int, length: int, prefixes: int, target: int) -> bytes:
    """What to write at `address` so that control goes to `target`: at most `length` bytes, the rest being there already.

    Raises OverflowError if `target` is beyond 2 GB.
    """
    whole = bytes([_PREFIX] * prefixes) + jump(address + prefixes, target)
    return whole[: max(length, 1)] if length < JMP32_SIZE else whole
