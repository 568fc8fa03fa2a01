"""Functions that return more than once because they call code that copies stacks, such as greenlet's slp_switch.

That code puts a part of the stack aside and moves the stack pointer by the distance to another part. Started anew, a greenlet
returns from the call at once, in the frames of the one that it has been started by, which return once more later.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from sandbox.x86_64.return_slot import shifts_stack

_CALL_SIZE = 5
_MOST = 512
"""Bytes of a called function that are examined."""
_ADDS = re.compile(rb"[\x48\x4c]\x01[\xc4\xcc\xd4\xdc\xe4\xec\xf4\xfc]|[\x48\x49]\x03[\xe0-\xe7]")
"""`add rsp, register`, in both encodings."""


def _moves(code: bytes, start: int) -> bool:
    """Whether the function with these bytes moves its stack pointer by a distance that it has not put there."""
    return _ADDS.search(code) is not None and shifts_stack(code, start)


class StackMovers:
    """What is known of called functions. `read`: (address, size) -> the text there without probes. Raises OSError, ValueError."""

    def __init__(self, read: Callable[[int, int], bytes]) -> None:
        self._read = read
        self._known: dict[int, bool] = {}

    def called_by(self, code: bytes, start: int, low: int, high: int) -> str:
        """Why the return of the function with these bytes at `start` cannot be hooked, given what it calls in [low, high)."""
        if _moves(code, start):
            return "it may switch stacks: it adds a distance in a register to its stack pointer"
        at = code.find(b"\xe8")
        while 0 <= at <= len(code) - _CALL_SIZE:
            target = start + at + _CALL_SIZE + int.from_bytes(code[at + 1 : at + _CALL_SIZE], "little", signed=True)
            if low <= target < high and target != start and self._is_mover(target, high):
                return f"it may return twice: what it calls at +{at:#x} copies stacks"
            at = code.find(b"\xe8", at + 1)
        return ""

    def _is_mover(self, address: int, end: int) -> bool:
        known = self._known.get(address)
        if known is None:
            try:
                code = self._read(address, min(_MOST, end - address))
            except (OSError, ValueError):
                code = b""
            known = self._known[address] = _moves(code, address)
        return known
