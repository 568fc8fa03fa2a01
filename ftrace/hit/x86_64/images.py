"""Images of pt_regs on the stack around a handler: with all registers, or those used at a function's entry or return.
Assembly text (AT&T) for the trampolines.

A pt_regs is 21 words. From the highest address down: ss, sp, flags, cs, ip, orig_ax by hand; rdi, rsi, rdx, rcx, rax, r8, r9,
r10, r11, rbx, rbp, r12 to r15. Registers that are not stored are undefined: handlers that use them get an image of all.
"""

from __future__ import annotations

from sandbox.native.handler import Fields

_ALL = ("rdi", "rsi", "rdx", "rcx", "rax", "r8", "r9", "r10", "r11", "rbx", "rbp", "r12", "r13", "r14", "r15")
_ARGUMENTS = _ALL[:7]
_RESULTS = ("rdx", "rcx", "rax")


def push(registers: tuple[str, ...]) -> str:
    """Push them, the first one first."""
    return "\n".join(f"    push %{register}" for register in registers)


def pop(registers: tuple[str, ...]) -> str:
    """Undo `push`."""
    return "\n".join(f"    pop %{register}" for register in reversed(registers))


def whole(sp: str, flags: str = "pushfq", ip: str = "push $$0", orig_ax: str = "push $$-1") -> str:
    """Push a whole image; the arguments are the instructions that push these words."""
    words = ("push $$$USER_SS", sp, flags, "push $$$USER_CS", ip, orig_ax)
    return "\n".join(f"    {word}" for word in words) + "\n" + push(_ALL)


def _entry(flags: str) -> str:
    """The image of an entry, below a word of padding."""
    return "    sub $$8, %rsp\n" + whole("push %r11", flags, orig_ax="push $$0")


KEEP_ENTRY = _entry("pushfq") + "\n    lea 184(%rsp), %rax\n    mov %rax, $REGS_SP(%rsp)\n    cld"
"""The whole image of an entry: 176 bytes. Uses rax."""
KEEP_ENTRY_REGS = _entry("push $$$USER_FLAGS") + "\n    lea 184(%rsp), %rdi\n    mov %rdi, $REGS_SP(%rsp)\n    cld"
"""The same with constant flags, which are dead at an entry; rdi = address of the return slot."""
GET_ALL = pop(_ALL) + "\n    add $$8, %rsp"
"""Every register from its image, up to the ip word. Flags are lost."""

GET_REGISTERS = "\n".join(f"    mov {8 * at}(%rsp), %{register}" for at, register in enumerate(reversed(_ALL)))
"""The same, leaving flags and stack as they are."""

_ARGUMENT_FIELDS = frozenset({"di", "si", "dx", "cx", "ax", "r8", "r9"})
ARGUMENTS = Fields(_ARGUMENT_FIELDS | {"ip"}, _ARGUMENT_FIELDS)
"""The fields of a pt_regs that a handler with the image of arguments may read and write."""
ARGUMENTS_SP = Fields(ARGUMENTS.read | {"sp", "bp"}, ARGUMENTS.written)
"""The same with sp, through which it may change the stack, and bp, from which the stack can be walked."""
_RESULT_FIELDS = frozenset({"dx", "cx", "ax", "ip", "sp"})
RESULTS = Fields(_RESULT_FIELDS | {"bp"}, _RESULT_FIELDS)
"""The same for the image of results. What is written to ip and sp does not count."""

KEEP_ARGUMENTS = "    sub $$56, %rsp\n" + push(_ARGUMENTS) + "\n    sub $$64, %rsp"
"""The registers that arguments come in, in an image of 176 bytes: that of an entry, with space for the others."""
GET_ARGUMENTS = "    lea 64(%rsp), %rsp\n" + pop(_ARGUMENTS) + "\n    lea 56(%rsp), %rsp"
"""Undo KEEP_ARGUMENTS. Flags are preserved."""
GET_ARGUMENTS_NOT_ZERO = "    lea 64(%rsp), %rsp\n" + pop(_ARGUMENTS) + "\n    add $$56, %rsp"
"""The same; the zero flag is clear."""
ENTRY_IP = """    lea 5(%rsi), %r11
    mov %r11, $REGS_IP(%rsp)
    mov %rsp, %rcx"""
"""Complete the image of arguments: rsi = the site; rcx = the image. Uses r11."""
ENTRY_SP_IP = (
    """    lea 184(%rsp), %r11
    mov %r11, $REGS_SP(%rsp)
    mov %rbp, $REGS_BP(%rsp)
"""
    + ENTRY_IP
)
"""The same with sp and bp."""

KEEP_RESULTS = "    sub $$64, %rsp\n" + push(_RESULTS) + "\n    sub $$80, %rsp"
"""The registers that results come in, in an image of 168 bytes below the return slot."""
GET_RESULTS = "    lea 80(%rsp), %rsp\n" + pop(_RESULTS) + "\n    lea 64(%rsp), %rsp"
"""Undo KEEP_RESULTS. Flags are preserved."""
EXIT_SP_IP = """    lea 176(%rsp), %r11
    mov %r11, $REGS_SP(%rsp)
    mov %rbp, $REGS_BP(%rsp)
    mov %rdx, $REGS_IP(%rsp)
    mov %rsp, %rcx"""
"""Complete the image of results: rdx = the parent; rcx = the image. Uses r11."""

KEEP_VALUE = push(("rdx", "rcx", "rax"))
GET_VALUE = pop(("rdx", "rcx", "rax"))
VALUE_ONLY = """    lea -$REGS_AX(%rsp), %rcx"""
"""rcx = where an image would be that has ax on top of the stack. Nothing else of it is there."""
