"""Calling C code from a hit with live vector registers preserved, as assembly text (AT&T)."""

from __future__ import annotations

KEEP_ALL = """    # every component, in an area on the stack, 64-byte aligned; its size and mask come from CPUID
    sub $$$XSAVE_SIZE, %rsp
    and $$-64, %rsp
    xor %edx, %edx
    mov $$$XSAVE_MASK, %eax
    movq $$0, 512(%rsp)
    movq $$0, 520(%rsp)
    movq $$0, 528(%rsp)
    movq $$0, 536(%rsp)
    movq $$0, 544(%rsp)
    movq $$0, 552(%rsp)
    movq $$0, 560(%rsp)
    movq $$0, 568(%rsp)
    $XSAVE (%rsp)
    mov %fs:$TASK, %r11
    mov $VECTORS(%r11), %r10
    mov %r10, $XSAVE_END(%rsp)
    lea 161(%rsp), %r10
    mov %r10, $VECTORS(%r11)
"""
"""Vector and x87 state goes to the stack, and Task.vectors tells where (ftrace.handlers.floats). Uses rax, rdx, r10 and r11."""

GET_ALL = """
    mov %eax, %ebx
    mov $XSAVE_END(%rsp), %r10
    mov %fs:$TASK, %r11
    mov %r10, $VECTORS(%r11)
    xor %edx, %edx
    mov $$$XSAVE_MASK, %eax
    xrstor (%rsp)
    mov %ebx, %eax
"""
"""The way back from KEEP_ALL; eax, the result of what was called, is kept. Uses rbx, rdx, r10 and r11."""

_BEGIN = """
    .globl $name
    .p2align 4
$name:
    .cfi_startproc
    push %rbp
    .cfi_offset %rbp, -16
    mov %rsp, %rbp
    .cfi_def_cfa_register %rbp
    push %rbx
    push %r12
    push %r13
    .cfi_offset %rbx, -24
    .cfi_offset %r12, -32
    .cfi_offset %r13, -40
    mov %rdi, %rbx
    mov %rdx, %r12
    mov %rcx, %r13
    cld
"""
_CALL = """    mov %rsi, %rdi
    mov %r12, %rsi
    mov %r13, %rdx
    mov %r8, %rcx
    mov %r9, %r8
    call *%rbx
"""
_END = """8:  lea -24(%rbp), %rsp
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    .cfi_def_cfa %rsp, 8
    ret
"""

CALL_FOREIGN = (
    """
# i32 ftrace_call_foreign(handler, fp, ip, ret_ip, regs, data): call C code that may use every caller-saved register, at the
# entry or return of a function that follows the C convention. Of the vector state only what arguments and results can be
# in is live there: the first eight vector registers, kept here; and, where a long double is returned, the x87 stack, which
# takes the complete way. XGETBV says whether the x87 unit is in use. Task.vectors tells where they are kept meanwhile
# (ftrace.handlers.floats), and what it said before is kept above them.
#   rbx = handler, then its result; r12 = ip, r13 = ret_ip; rbp = frame
"""
    + _BEGIN.replace("$name", "ftrace_call_foreign")
    + """    mov $$1, %ecx
    $XGETBV
    test $$1, %al
    jne 7f
    sub $$576, %rsp
    and $$-64, %rsp
$keep_vectors
    mov %fs:$TASK, %r11
    mov $VECTORS(%r11), %r10
    mov %r10, 512(%rsp)
    lea 4(%rsp), %r10
    mov %r10, $VECTORS(%r11)
"""
    + _CALL
    + """$get_vectors
    mov 512(%rsp), %r10
    mov %fs:$TASK, %r11
    mov %r10, $VECTORS(%r11)
    jmp 8f

7:
"""
    + KEEP_ALL
    + _CALL
    + GET_ALL
    + _END
    + """
# The same at the entry or return of a function that was not compiled here: its callers may have something in any vector register.
"""
    + _BEGIN.replace("$name", "ftrace_call_foreign_keeping")
    + KEEP_ALL
    + _CALL
    + GET_ALL
    + _END
)


def moved_vectors(register: str, keep: bool) -> str:
    """Move the first eight vector registers (`register`: xmm, ymm or zmm) to the stack, or back."""
    move = {"xmm": "movaps", "ymm": "vmovaps", "zmm": "vmovaps"}[register]
    pairs = [(f"%{register}{i}", f"{64 * i}(%rsp)") for i in range(8)]
    return "\n".join(f"    {move} {a}, {b}" if keep else f"    {move} {b}, {a}" for a, b in pairs)
