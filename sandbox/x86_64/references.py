"""The addresses that machine code calls or takes."""

from __future__ import annotations

import re
import struct
from collections.abc import Set

_CALL = re.compile(rb"\xe8(?=(....))", re.DOTALL)
"""call rel32."""
_LEA = re.compile(rb"[\x48\x4c]\x8d[\x05\x0d\x15\x1d\x25\x2d\x35\x3d](?=(....))", re.DOTALL)
"""lea rel32(%rip), of any register."""
_DISPLACEMENT = 4

_SIGRETURN = bytes.fromhex("48c7c00f000000 0f05")
"""mov $15, %rax; syscall: what the kernel lets a signal handler return to."""


def referred_to(code: bytes, start: int, among: Set[int]) -> set[int]:
    """Which of the addresses `among` code at `start` calls, or takes by an address relative to its own.

    The code is not decoded: four bytes that lead to one of few addresses by chance are not to be expected.
    """
    found = set()
    for pattern in (_CALL, _LEA):
        for match in pattern.finditer(code):
            target = start + match.end() + _DISPLACEMENT + struct.unpack("<i", match[1])[0]
            if target in among:
                found.add(target)
    return found


def signal_return(code: bytes) -> int:
    """The number of bytes before the instructions of a signal frame; 0 if `code` is something else.

    Its description begins a byte early, since unwinders look up the byte before the return address.
    """
    return max(code.find(_SIGRETURN), 0)
