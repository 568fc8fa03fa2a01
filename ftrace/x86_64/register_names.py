"""The registers that probe event arguments can name."""

from __future__ import annotations

REGISTER_NAMES = frozenset(
    (
        "r15", "r14", "r13", "r12", "r11", "r10", "r9", "r8", "bx", "cx", "dx", "si", "di", "bp", "ax",
        "orig_ax", "ip", "cs", "flags", "sp", "ss",
    )
)  # fmt: skip
"""The names of `%REG`, which are the fields of pt_regs."""

ENDBR_SIZE = 4
"""Bytes of an endbr64: a function's entry may be given as this offset too."""
