"""The guard through which Python calls a module's functions: if the call faults, it returns from here."""

from __future__ import annotations

from collections.abc import Mapping

from ftrace.x86_64.frames import IN_MEMORY, IS_VALUE, RIP, RSP, escaped, register, rule

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
    """What unwinders are told in GUARD while the function runs: rules of DWARF that the assembler has no words for."""
    parent, bx = int(constants["GUARD_PARENT"]), int(constants["GUARD_BX"])
    return {
        "CALLERS_BX": escaped(rule(IN_MEMORY, register(_RBX, bx), _RBX)),
        "CALLERS_IP": escaped(rule(IN_MEMORY, register(_RBX, parent), RIP)),
        "CALLERS_SP": escaped(rule(IS_VALUE, register(RSP), RSP)),
        "CALLEES_CFA": f"{_DEF_CFA}, {RSP}, 1",
    }
