"""Fault-safe reading and writing of one word for an emulated instruction, as assembly text (AT&T)."""

from __future__ import annotations

GUARDED_ACCESS = """
# u64 kprobe_load(u64 address, u64 segment, u64 *value) and u64 kprobe_store(u64 address, u64 value): 1, or 0 if the memory is
# not accessible. They push nothing: after a fault, kprobes.hit.faulting continues at kprobe_no_access.
#   rdi = address   rsi = segment (sandbox.x86_64.operand), value   rdx = value   rax = result
    .globl kprobe_load, kprobe_store, kprobe_no_access
    .p2align 4
kprobe_load:
    .cfi_startproc
    cmp $1, %esi
    je 1f
    ja 2f
    mov (%rdi), %rax
    jmp 3f
1:  mov %fs:(%rdi), %rax
    jmp 3f
2:  mov %gs:(%rdi), %rax
3:  mov %rax, (%rdx)
    mov $1, %eax
    ret
kprobe_store:
    mov %rsi, (%rdi)
    mov $1, %eax
    ret
kprobe_no_access:
    xor %eax, %eax
    ret
    .cfi_endproc
"""
