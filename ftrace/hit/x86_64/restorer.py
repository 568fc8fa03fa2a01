"""The restorer to which the signal handlers of sandbox.threads.signals return, as assembly text (AT&T)."""

from __future__ import annotations

from ftrace.hit.x86_64.frames import DEF_CFA, DEREF, IN_MEMORY, RIP, RSP, escaped, op, register, rule

_MCONTEXT = 40
"""Bytes from the ucontext, where rsp points, to the registers."""
_SAVED = (8, 9, 10, 11, 12, 13, 14, 15, 5, 4, 6, 3, 1, 0, 2, RSP, RIP)
"""The numbers of the registers in the order in which they are there."""


def _frame_rules() -> str:
    """The interrupted code's registers are where the kernel has put them, and its rsp is the CFA."""
    places = {number: register(RSP, _MCONTEXT + 8 * index) for index, number in enumerate(_SAVED)}
    rules = [rule(DEF_CFA, places[RSP] + op(DEREF)), *(rule(IN_MEMORY, at, number) for number, at in places.items())]
    return "\n".join(f"    .cfi_escape {escaped(each)}" for each in rules)


RESTORER = f"""
# Unwinders look up the byte before, as for any return address, so the description begins with a byte that is not executed.
# Those that do not read it know these very instructions.
    .globl sandbox_restorer
    .cfi_startproc
    .cfi_signal_frame
{_frame_rules()}
    nop
sandbox_restorer:
    mov $15, %rax
    syscall
"""
