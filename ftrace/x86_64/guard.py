"""The gate through which Python calls a module's functions: if the call faults, it returns from here."""

from __future__ import annotations

from collections.abc import Mapping

_RBX, _RSP, _RIP = 3, 7, 16
_IN_MEMORY, _IS_VALUE, _CFA = 0x10, 0x16, 0x0C
_BASE_REGISTER = 0x70

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
        "CALLERS_BX": _rule(_IN_MEMORY, _RBX, _RBX, bx),
        "CALLERS_IP": _rule(_IN_MEMORY, _RIP, _RBX, parent),
        "CALLERS_SP": _rule(_IS_VALUE, _RSP, _RSP, 0),
        "CALLEES_CFA": f"{_CFA}, {_RSP}, 1",
    }


def _rule(kind: int, register: int, base: int, offset: int) -> str:
    """The caller's `register` is, or is in memory at, `base` + `offset` bytes."""
    if not 0 <= offset < 64:
        raise ValueError(f"the offset {offset} does not fit a byte of a signed number")
    return f"{kind}, {register}, 2, {_BASE_REGISTER + base}, {offset}"
