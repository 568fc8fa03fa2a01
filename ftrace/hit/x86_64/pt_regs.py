"""The registers of a hit, in the kernel's layout."""

from __future__ import annotations

from sandbox.native import *

USER_CS, USER_SS = 0x33, 0x2B
"""Selectors of 64-bit code and of the stack in user space."""
USER_FLAGS = 0x246
"""Flags of a thread in user space: interrupts enabled, and the parity and zero flags."""


@struct
class pt_regs(Structure):
    """The kernel's struct pt_regs for x86-64: 21 words of 8 bytes."""

    r15: u64
    r14: u64
    r13: u64
    r12: u64
    bp: u64
    bx: u64
    r11: u64
    r10: u64
    r9: u64
    r8: u64
    ax: u64
    cx: u64
    dx: u64
    si: u64
    di: u64
    orig_ax: u64
    ip: u64
    cs: u64
    flags: u64
    sp: u64
    ss: u64


REGISTER_NAMES = frozenset(name for name, _ in pt_regs.ctypes._fields_)
"""The names that `%REG` of a probe event's argument may have."""
