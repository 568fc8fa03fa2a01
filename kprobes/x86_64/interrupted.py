"""How to unwind from a detour to the code that was probed: by its pt_regs, as from a signal's frame."""

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
_BREG_RBX, _DEREF = 0x73, 0x06
_DEF_CFA_EXPRESSION, _EXPRESSION = 0x0F, 0x10


def _at(offset: int) -> list[int]:
    """DWARF expression: the address `offset` (less than 8192) behind rbx."""
    low, high = offset & 0x7F, offset >> 7
    return [_BREG_RBX, low] if low < 0x40 and not high else [_BREG_RBX, low | 0x80, high]


def _escape(*values: int) -> str:
    return "    .cfi_escape " + ", ".join(map(hex, values))


def begin() -> str:
    """Directives behind the instruction that has let rbx point to the pt_regs. `END` follows the call."""
    cfa = [*_at(_SP), _DEREF]
    rules = [_escape(_DEF_CFA_EXPRESSION, len(cfa), *cfa)]
    for register, offset in {**REGISTERS, "rip": _IP}.items():
        place = _at(offset)
        rules.append(_escape(_EXPRESSION, _NUMBERS[register], len(place), *place))
    return "\n".join(["    .cfi_startproc", "    .cfi_signal_frame", *rules])


END = "    .cfi_endproc"
