"""Reading live vector registers, as assembly text: native handlers use none otherwise."""

from __future__ import annotations

LIVE_VECTORS = 8
"""How many vector registers hold arguments at a function's entry."""

_READS = "\n".join(f"    .p2align 3\n    movq %xmm{n}, %rax\n    ret" for n in range(LIVE_VECTORS))
_SAVES = "\n".join(f"    movups %xmm{n}, {16 * n}(%rdi)" for n in range(LIVE_VECTORS))
_WRITES = "\n".join(f"    .p2align 3\n    movq %rsi, %xmm{n}\n    ret" for n in range(LIVE_VECTORS))

VECTOR_READS = f"""
# u64 ftrace_read_xmm(u64 n): the low half of vector register n & 7
#   rdi = n   rax = the result; nothing on the stack; each entry of the table is 8 bytes
    .globl ftrace_read_xmm
    .p2align 4
ftrace_read_xmm:
    .cfi_startproc
    and $7, %edi
    lea 1f(%rip), %rax
    lea (%rax,%rdi,8), %rax
    jmp *%rax
    .p2align 3
1:
{_READS}

# void ftrace_save_xmm(u8 *to): store all of them, 16 bytes each
#   rdi = to
    .globl ftrace_save_xmm
    .p2align 4
ftrace_save_xmm:
    .cfi_startproc
{_SAVES}
    ret

# void ftrace_write_xmm(u64 n, u64 value): set the low half, and clear the next 8 bytes
#   rdi = n   rsi = value   rax = scratch; nothing on the stack
    .globl ftrace_write_xmm
    .p2align 4
ftrace_write_xmm:
    .cfi_startproc
    and $7, %edi
    lea 1f(%rip), %rax
    lea (%rax,%rdi,8), %rax
    jmp *%rax
    .p2align 3
1:
{_WRITES}
"""
