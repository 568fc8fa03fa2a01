"""How to unwind from a detour to the code that was probed, as from a signal's frame: directives for assembly text.

The CFA is the interrupted code's stack pointer. Its instruction pointer is told at first by the kprobe's record, to which
something on the stack leads; its other registers are where they were, then in a pt_regs.
"""

from __future__ import annotations

REGISTERS = {
    "r15": 0, "r14": 8, "r13": 16, "r12": 24, "rbp": 32, "rbx": 40, "r11": 48, "r10": 56, "r9": 64, "r8": 72, "rax": 80,
    "rcx": 88, "rdx": 96, "rsi": 104, "rdi": 112,
}  # fmt: skip
"""Offsets of the general registers in a pt_regs."""
_IP, _SP = 128, 152
_NUMBERS = {
    "rax": 0, "rdx": 1, "rcx": 2, "rbx": 3, "rsi": 4, "rdi": 5, "rbp": 6,
    **{f"r{n}": n for n in range(8, 16)}, "rip": 16,
}  # fmt: skip
"""DWARF's numbers of registers."""
_BREG_RBX, _DEREF, _CONST1U, _MINUS, _PLUS_UCONST = 0x73, 0x06, 0x08, 0x1C, 0x23
_DEF_CFA_EXPRESSION, _EXPRESSION, _VAL_EXPRESSION = 0x0F, 0x10, 0x16


def head(pushed: int) -> str:
    """Of a procedure that is come to with the stack pointer `pushed` bytes below the interrupted code's."""
    return f"    .cfi_startproc\n    .cfi_signal_frame\n    .cfi_def_cfa %rsp, {pushed}"


def ip_by_record(below: int, before: int, address: int) -> str:
    """The instruction pointer is in the kprobe's record at `address`.

    The record's address is `before` bytes before what the word `below` bytes below the CFA points to; or, if that is 0, the
    word itself.
    """
    record = [_CONST1U, below, _MINUS, _DEREF] + ([_CONST1U, before, _MINUS, _DEREF] if before else [])
    return _rule(_VAL_EXPRESSION, "rip", [*record, _PLUS_UCONST, *_leb(address), _DEREF])


def saved(below: int) -> str:
    """All general registers are in a pt_regs `below` bytes below the CFA."""
    return "\n".join(f"    .cfi_offset %{register}, {offset - below}" for register, offset in REGISTERS.items())


def unsaved(*but: str) -> str:
    """All general registers have their values again, except for `but`."""
    return "\n".join(f"    .cfi_same_value %{register}" for register in REGISTERS if register not in but)


def by_regs() -> str:
    """Everything is as the pt_regs that rbx points to says."""
    cfa = [*_at(_SP), _DEREF]
    rules = [_escape(_DEF_CFA_EXPRESSION, len(cfa), *cfa)]
    return "\n".join(
        rules + [_rule(_EXPRESSION, register, _at(to)) for register, to in {**REGISTERS, "rip": _IP}.items()]
    )


def _at(offset: int) -> list[int]:
    """DWARF expression: the address `offset` bytes behind rbx."""
    return [_BREG_RBX, *_leb(offset, signed=True)]


def _leb(value: int, signed: bool = False) -> list[int]:
    """A LEB128 number of one byte or two."""
    low, high = value & 0x7F, value >> 7
    return [low] if not high and not (signed and low & 0x40) else [low | 0x80, high]


def _rule(kind: int, register: str, expression: list[int]) -> str:
    return _escape(kind, _NUMBERS[register], len(expression), *expression)


def _escape(*values: int) -> str:
    return "    .cfi_escape " + ", ".join(map(hex, values))
