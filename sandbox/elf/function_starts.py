"""Evidence that a function begins at an address: code that calls or takes it, and the stack that its unwind table describes."""

from __future__ import annotations

import re
import struct
from collections.abc import Set

from sandbox.elf.dwarf_reader import Reader

_RSP, _RETURN_ADDRESS = 7, 16
_WORD = 8
_NOP, _DEF_CFA, _DEF_CFA_REGISTER, _DEF_CFA_OFFSET, _ARGS_SIZE = 0x00, 0x0C, 0x0D, 0x0E, 0x2E
_OFFSET = 0x80
"""DW_CFA_offset, with a register in the low six bits."""
_CFA_REGISTER, _CFA_OFFSET, _UNKNOWN = -1, -2, -3
_CALL = re.compile(rb"\xe8(?=(....))", re.DOTALL)
"""call rel32."""
_LEA = re.compile(rb"[\x48\x4c]\x8d[\x05\x0d\x15\x1d\x25\x2d\x35\x3d](?=(....))", re.DOTALL)
"""lea rel32(%rip), of any register."""
_DISPLACEMENT = 4
_SIGRETURN = bytes.fromhex("48c7c00f000000 0f05")
"""mov $15, %rax; syscall: what the kernel lets a signal handler return to."""


def is_as_called(initial: Reader, end_of_initial: int, own: Reader, end_of_own: int) -> bool:
    """Whether the canonical frame address is rsp + 8, and only the return address saved, at the first instruction.

    `initial`, `own`: at the instructions of a CIE and of an FDE of its, which end at the addresses given. False too if they
    are more than compilers write there.
    """
    rules: dict[int, int] = {}
    _apply(initial, end_of_initial, rules)
    _apply(own, end_of_own, rules)
    return rules == {_CFA_REGISTER: _RSP, _CFA_OFFSET: _WORD, _RETURN_ADDRESS: 1}


def _apply(reader: Reader, end: int, rules: dict[int, int]) -> None:
    """Follow the instructions up to the first that is about a later address. A register's rule: how many words below the CFA."""
    while reader.position < end:
        code = reader.byte()
        if code == _DEF_CFA:
            rules[_CFA_REGISTER], rules[_CFA_OFFSET] = reader.uleb(), reader.uleb()
        elif code == _DEF_CFA_REGISTER:
            rules[_CFA_REGISTER] = reader.uleb()
        elif code == _DEF_CFA_OFFSET:
            rules[_CFA_OFFSET] = reader.uleb()
        elif code & 0xC0 == _OFFSET:
            rules[code & 0x3F] = reader.uleb()
        elif code == _ARGS_SIZE:
            reader.uleb()
        elif code & 0xC0 == 0x40 or code in (0x01, 0x02, 0x03, 0x04):
            return
        elif code != _NOP:
            rules[_UNKNOWN] = code
            return


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
