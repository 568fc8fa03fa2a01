"""CFI directives that unwind from a detour to the probed code, as from a signal's frame.

The CFA is the interrupted code's stack pointer. Its instruction pointer is first found through the kprobe's record, which a
word on the stack leads to. Its other registers are unchanged at first, and then in a pt_regs.
"""

from __future__ import annotations

from ftrace.x86_64.frames import (
    AND,
    DEF_CFA,
    DEREF,
    IN_MEMORY,
    IS_VALUE,
    MINUS,
    RIP,
    const1s,
    const1u,
    escaped,
    field,
    op,
    register,
    rule,
)

REGISTERS = {
    "r15": 0, "r14": 8, "r13": 16, "r12": 24, "rbp": 32, "rbx": 40, "r11": 48, "r10": 56, "r9": 64, "r8": 72, "rax": 80,
    "rcx": 88, "rdx": 96, "rsi": 104, "rdi": 112,
}  # fmt: skip
"""Offsets of the general registers in a pt_regs."""
_IP, _SP = 128, 152
_NUMBERS = {
    "rax": 0, "rdx": 1, "rcx": 2, "rbx": 3, "rsi": 4, "rdi": 5, "rbp": 6,
    **{f"r{n}": n for n in range(8, 16)},
}  # fmt: skip
"""DWARF's numbers of registers."""
_RBX = _NUMBERS["rbx"]


def head(pushed: int) -> str:
    """The start of a routine that is entered with the stack pointer `pushed` bytes below the interrupted code's."""
    return f"    .cfi_startproc\n    .cfi_signal_frame\n    .cfi_def_cfa %rsp, {pushed}"


def ip_by_record(below: int, address: int, unit: int = 0, record: int = 0) -> str:
    """The instruction pointer is in the kprobe's record at `address`.

    The record's address is the word `below` bytes below the CFA. If `unit` is given, that word points into a code block that
    is aligned to `unit` bytes, and the record's address is at offset `record` of the block.
    """
    found = const1u(below) + op(MINUS, DEREF) + (const1s(-unit) + op(AND) + field(record) if unit else b"")
    return _escape(rule(IS_VALUE, found + field(address), RIP))


def saved(below: int) -> str:
    """All general registers are in a pt_regs, `below` bytes below the CFA."""
    return "\n".join(f"    .cfi_offset %{name}, {offset - below}" for name, offset in REGISTERS.items())


def unsaved(*but: str) -> str:
    """All general registers but `but` have been restored."""
    return "\n".join(f"    .cfi_same_value %{name}" for name in REGISTERS if name not in but)


def by_regs() -> str:
    """All registers are in the pt_regs that rbx points to."""
    rules = [rule(DEF_CFA, register(_RBX, _SP) + op(DEREF))]
    rules += [rule(IN_MEMORY, register(_RBX, to), _NUMBERS[name]) for name, to in REGISTERS.items()]
    return "\n".join(map(_escape, [*rules, rule(IN_MEMORY, register(_RBX, _IP), RIP)]))


def _escape(described: bytes) -> str:
    return f"    .cfi_escape {escaped(described)}"
