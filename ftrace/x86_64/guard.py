"""The gate through which Python calls a module's functions: if the call faults, it returns from here."""

GUARD = """
# Called in place of a function, whose address is in r11; all argument registers and the stack are the function's.
#   r10 = task; rax (kept on the stack) = the Guard record
# The return address moves into the record, and `call` puts ours into its slot: stack arguments stay where they are.
    .globl sandbox_guard
    .p2align 4
sandbox_guard:
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
    pop %rax
    add $$8, %rsp
    call *%r11
    mov %fs:$TASK, %r10
    mov $GUARD_TOP(%r10), %r11
    sub $$$GUARD_SIZE, %r11
    mov %r11, $GUARD_TOP(%r10)
    push $GUARD_PARENT(%r11)
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
