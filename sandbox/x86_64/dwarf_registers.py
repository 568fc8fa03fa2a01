"""The numbers that DWARF gives to registers (System V ABI for AMD64, figure 3.36)."""

from __future__ import annotations

REGISTERS = (
    "ax", "dx", "cx", "bx", "si", "di", "bp", "sp",
    "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "ip",
)  # fmt: skip
"""The general registers by their numbers, with their names in pt_regs; 16 is the return address."""
VECTORS = range(17, 33)
"""The numbers of xmm0 to xmm15."""
