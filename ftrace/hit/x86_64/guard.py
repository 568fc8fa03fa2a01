"""Code in which a fault does not end the process, as assembly text: calls into a module, copies of memory."""

from __future__ import annotations

from collections.abc import Mapping

from ftrace.hit.x86_64.frames import IN_MEMORY, IS_VALUE, RIP, RSP, escaped, register, rule

_RBX = 3
_DEF_CFA = 0x0C

GUARD = """
# Called in place of a function, whose address is in r11; all argument registers and the stack are the function's.
#   r10 = task; rax (kept on the stack) = the Guard record; rbx = the same, for unwinders, while the function runs
# The return address moves into the record, and `call` puts ours into its slot: stack arguments stay where they are. The
# function's CFA is the slot's end, and two frames must not have the same: ours is one byte higher meanwhile.
    .globl sandbox_guard
    .p2align 4
sandbox_guard:
    .cfi_startproc
    push %rax
    mov %fs:$TASK, %r10
    test %r10, %r10
    je 8f
1:  mov $GUARD_TOP(%r10), %rax
    cmp $GUARD_END(%r10), %rax
    jae 9f
    addq $$$GUARD_SIZE, $GUARD_TOP(%r10)
    mov %r11, $GUARD_TARGET(%rax)
    mov %rbx, $GUARD_BX(%rax)
    mov %rbp, $GUARD_BP(%rax)
    mov %r12, $GUARD_R12(%rax)
    mov %r13, $GUARD_R13(%rax)
    mov %r14, $GUARD_R14(%rax)
    mov %r15, $GUARD_R15(%rax)
    mov 8(%rsp), %r11
    mov %r11, $GUARD_PARENT(%rax)
    lea 8(%rsp), %r11
    mov %r11, $GUARD_SP(%rax)
    mov $TOP(%r10), %r11
    mov %r11, $GUARD_NODES(%rax)
    mov $REC(%r10), %r11d
    mov %r11, $GUARD_REC(%rax)
    mov $GUARD_TARGET(%rax), %r11
    mov %rax, %rbx
    .cfi_escape $CALLERS_BX
    pop %rax
    .cfi_escape $CALLERS_IP
    add $$8, %rsp
    .cfi_escape $CALLEES_CFA
    .cfi_escape $CALLERS_SP
    call *%r11
    mov %fs:$TASK, %r10
    mov $GUARD_TOP(%r10), %r11
    sub $$$GUARD_SIZE, %r11
    push $GUARD_PARENT(%r11)
    .cfi_def_cfa_offset 8
    .cfi_restore %rip
    .cfi_restore %rsp
    mov $GUARD_BX(%r11), %rbx
    .cfi_restore %rbx
    mov %r11, $GUARD_TOP(%r10)
    ret
8:  # no task yet: claim one
$keep
    call task_get
    mov %rax, %r10
$get
    test %r10, %r10
    jne 1b
9:  # none to be had, or too many calls within calls: unguarded
    pop %rax
    jmp *%r11
"""


def frame_rules(constants: Mapping[str, int | str]) -> dict[str, str]:
    """GUARD's rules for unwinders while the function runs: DWARF that the assembler has no directives for."""
    parent, bx = int(constants["GUARD_PARENT"]), int(constants["GUARD_BX"])
    return {
        "CALLERS_BX": escaped(rule(IN_MEMORY, register(_RBX, bx), _RBX)),
        "CALLERS_IP": escaped(rule(IN_MEMORY, register(_RBX, parent), RIP)),
        "CALLERS_SP": escaped(rule(IS_VALUE, register(RSP), RSP)),
        "CALLEES_CFA": f"{_DEF_CFA}, {RSP}, 1",
    }


EFAULT, EINVAL, E2BIG = 14, 22, 7

GUARDED_READ = """
# long ftrace_probe_read(void *to, const void *from, unsigned long size)
#   rdi = to   rsi = from   rdx = size (at most 65536)   rax = size, or -E2BIG, -EFAULT; nothing on the stack
#   After a fault in the copy loop rcx bytes are left; the whole destination is zeroed instead, if that can be written.
    .globl ftrace_probe_read, ftrace_probe_zero, ftrace_probe_failed
    .p2align 4
ftrace_probe_read:
    .cfi_startproc
    mov %rdx, %rax
    mov %rdx, %rcx
    cmp $8, %rdx
    jne 1f
    mov (%rsi), %rdx
    mov %rdx, (%rdi)
    ret
1:  cmp $65536, %rdx
    ja 2f
    cmp $4, %rdx
    jne 3f
    mov (%rsi), %edx
    mov %edx, (%rdi)
    ret
3:  rep movsb
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

# long ftrace_same_frames(unsigned long frame, const struct KnownFrame *known, const unsigned long offsets[3])
#   rdi = frame   rsi = the known frame to compare it with; its caller's is before it, and one of zeros before the outermost
#   rdx = where a frame has its code, its caller and its place: r8, r9, r10   nothing on the stack
#   rax = how many are the same, from `frame` outwards; plus 1 << 32 if that is all; -EFAULT
    .globl ftrace_same_frames
    .p2align 4
ftrace_same_frames:
    mov (%rdx), %r8
    mov 8(%rdx), %r9
    mov 16(%rdx), %r10
    xor %eax, %eax
1:  cmp (%rsi), %rdi
    jne 2f
    test %rdi, %rdi
    je 3f
    mov (%rdi,%r8), %rcx
    cmp 8(%rsi), %rcx
    jne 2f
    mov (%rdi,%r10), %rcx
    cmp 16(%rsi), %rcx
    jne 2f
    mov (%rdi,%r9), %rdi
    sub $32, %rsi
    inc %eax
    jmp 1b
3:  bts $32, %rax
2:  ret

# long ftrace_probe_read_str(char *to, const char *from, unsigned long size)
#   rdi = to   rsi = from   rdx = size   rax = bytes with the final 0, or -EINVAL, -E2BIG, -EFAULT; nothing on the stack
#   Words of 8 bytes while they fit the destination and lie in one page, else bytes. Nothing is written after the final 0.
#   rcx = the word, r11 = the last offset of a word in this page, r8 = -0x0101..., r9 = 0x8080...
#   r10 = bit 7 of a byte of 0 and perhaps of others: (word + r8) & r9, then bit 7 of the first byte of 0: & ~word
    .globl ftrace_probe_read_str, ftrace_probe_empty, ftrace_probe_end
    .p2align 4
ftrace_probe_read_str:
    .cfi_startproc
    xor %eax, %eax
    test %rdx, %rdx
    je 2f
    cmp $65536, %rdx
    ja 3f
    movabs $0xfefefefefefefeff, %r8
    movabs $0x8080808080808080, %r9
0:  lea (%rsi,%rax), %rcx
    or $-4096, %rcx
    mov %rax, %r11
    sub %rcx, %r11
    cmp %rdx, %r11
    cmova %rdx, %r11
    sub $8, %r11
    cmp %r11, %rax
    jg 5f
1:  mov (%rsi,%rax), %rcx
    lea (%rcx,%r8), %r10
    test %r9, %r10
    jne 6f
    mov %rcx, (%rdi,%rax)
    add $8, %rax
    cmp %r11, %rax
    jle 1b
4:  cmp %rdx, %rax
    jae 9f
    lea (%rsi,%rax), %ecx
    test $0xfff, %ecx
    je 0b
5:  movzbl (%rsi,%rax), %ecx
    mov %cl, (%rdi,%rax)
    inc %rax
    test %ecx, %ecx
    jne 4b
    ret
9:  movb $0, -1(%rdi,%rax)
    ret
6:  not %rcx
    and %r9, %r10
    and %rcx, %r10
    not %rcx
    jne 7f
    mov %rcx, (%rdi,%rax)
    add $8, %rax
    cmp %r11, %rax
    jle 1b
    jmp 4b
7:  # the last word: r10 = the bytes of it that count
    bsf %r10, %r10
    inc %r10d
    shr $3, %r10d
    test $8, %r10d
    jne 8f
    test $4, %r10d
    je 7f
    mov %ecx, (%rdi,%rax)
    shr $32, %rcx
    add $4, %rax
7:  test $2, %r10d
    je 9f
    mov %cx, (%rdi,%rax)
    shr $16, %rcx
    add $2, %rax
9:  test $1, %r10d
    je 9f
    mov %cl, (%rdi,%rax)
    inc %rax
9:  ret
8:  mov %rcx, (%rdi,%rax)
    add $8, %rax
    ret
2:  mov $-22, %rax
    ret
3:  mov $-7, %rax
    ret
ftrace_probe_empty:
    movb $0, (%rdi)
    jmp ftrace_probe_failed
ftrace_probe_end:
"""
