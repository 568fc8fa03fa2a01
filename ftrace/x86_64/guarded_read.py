"""Copying from memory that may be unmapped, as assembly text: every instruction that may fault has a fixup."""

from __future__ import annotations

EFAULT, EINVAL, E2BIG = 14, 22, 7

GUARDED_READ = """
# long ftrace_probe_read(void *to, const void *from, unsigned long size)
#   rdi = to   rsi = from   rdx = size (at most 65536)   rax = size, or -E2BIG, -EFAULT; nothing on the stack
#   After a fault in the copy loop rcx bytes are left; the whole destination is zeroed instead, if that can be written.
    .globl ftrace_probe_read, ftrace_probe_zero, ftrace_probe_failed
    .p2align 4
ftrace_probe_read:
    mov %rdx, %rax
    mov %rdx, %rcx
    cmp $8, %rdx
    jne 1f
    mov (%rsi), %rdx
    mov %rdx, (%rdi)
    ret
1:  cmp $65536, %rdx
    ja 2f
    rep movsb
    ret
2:  mov $-7, %rax
    ret
ftrace_probe_zero:
    sub %rax, %rdi
    add %rcx, %rdi
    mov %rax, %rcx
    xor %eax, %eax
    rep stosb
ftrace_probe_failed:
    mov $-14, %rax
    ret

# long ftrace_probe_read_str(char *to, const char *from, unsigned long size)
#   rdi = to   rsi = from   rdx = size   rax = bytes with the final 0, or -EINVAL, -E2BIG, -EFAULT; nothing on the stack
    .globl ftrace_probe_read_str, ftrace_probe_empty, ftrace_probe_end
    .p2align 4
ftrace_probe_read_str:
    xor %eax, %eax
    test %rdx, %rdx
    je 2f
    cmp $65536, %rdx
    ja 3f
1:  movzbl (%rsi,%rax), %ecx
    mov %cl, (%rdi,%rax)
    inc %rax
    test %ecx, %ecx
    je 4f
    cmp %rdx, %rax
    jb 1b
    movb $0, -1(%rdi,%rax)
4:  ret
2:  mov $-22, %rax
    ret
3:  mov $-7, %rax
    ret
ftrace_probe_empty:
    movb $0, (%rdi)
    jmp ftrace_probe_failed
ftrace_probe_end:
"""
