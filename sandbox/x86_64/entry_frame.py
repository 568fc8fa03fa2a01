"""Whether the stack is as after a call where a stretch of code begins, from its unwind table."""

from __future__ import annotations

from sandbox.elf.dwarf_reader import Reader

_RSP, _RETURN_ADDRESS = 7, 16
_WORD = 8
_NOP, _DEF_CFA, _DEF_CFA_REGISTER, _DEF_CFA_OFFSET, _ARGS_SIZE = 0x00, 0x0C, 0x0D, 0x0E, 0x2E
_OFFSET = 0x80
"""DW_CFA_offset, with a register in the low six bits."""


def is_as_called(initial: Reader, end_of_initial: int, own: Reader, end_of_own: int) -> bool:
    """Whether the canonical frame address is rsp + 8, and only the return address saved, at the first instruction.

    `initial`, `own`: at the instructions of a CIE and of an FDE of its, which end at the addresses given. False too if they
    are more than compilers write there.
    """
    rules: dict[int, int] = {}
    _apply(initial, end_of_initial, rules)
    _apply(own, end_of_own, rules)
    return rules == {_CFA_REGISTER: _RSP, _CFA_OFFSET: _WORD, _RETURN_ADDRESS: 1}


_CFA_REGISTER, _CFA_OFFSET, _UNKNOWN = -1, -2, -3


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
