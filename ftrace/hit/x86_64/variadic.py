"""trace_printk and __trace_bprintk, which take any number of arguments, as assembly text (AT&T)."""

from __future__ import annotations

_REGISTERS = "".join(f"    push %{name}\n" for name in ("r9", "r8", "rcx", "rdx", "rsi", "rdi"))

_FUNCTION = """
# {name}({parameters}, ...): trace_vbprintk(registers, stack, ip, first)
#   stack inside: the six registers with arguments, the return address, the arguments after those
    .globl {name}
    .type {name},@function
    .p2align 4
{name}:
    .cfi_startproc
    endbr64
{registers}    mov %rsp, %rdi
    lea 56(%rsp), %rsi
    mov {ip}(%rsp), %rdx
    mov ${first}, %ecx
    sub $8, %rsp
    call trace_vbprintk
    add $56, %rsp
    ret
"""

VARIADIC = _FUNCTION.format(
    name="trace_printk", parameters="format", registers=_REGISTERS, ip=48, first=1
) + _FUNCTION.format(name="__trace_bprintk", parameters="ip, format", registers=_REGISTERS, ip=0, first=2)
"""The functions. A program's floating-point arguments are not recorded, as in the kernel."""
