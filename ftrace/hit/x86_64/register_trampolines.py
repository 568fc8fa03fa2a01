"""The fast trampolines for native handlers that may use any register, as assembly text.

They follow the order of events of `ftrace_both` and `ftrace_exit_fast` for a single probe, with a register image around the
handler. The flags word of the image is a constant: flags are dead at a function's
entry and return.

The entry with handlers at both ends, expanded to its first `ret` (a test compares it). Registers and stack: at the head of
ENTRY_REGS.

    ftrace_both_regs:
        mov %rsp, HIT_SP(%r11)              <- a hit above it that was left by a jump is noticed by this
        mov %r10d, LIST(%r11)               <- the list is in use from here on
        cmpl $0, CONTEXT(%r11)
        jne ftrace_entry_full               <- in a signal's handler: nothing has been changed
        KEEP_ENTRY_REGS                     <- of ftrace.hit.x86_64.images: a whole pt_regs; rdi = the return slot's address
        mov TOP(%r11), %rsi                 <- the newest node ...
        cmp %rdi, FRAME(%rsi)
        jbe both_regs_full                  <- ... is of a call that was left: the slow path drops it
        lea NODE(%rsi), %r8
        cmp LIMIT(%r11), %r8
        ja both_regs_full                   <- the shadow stack is full
        mov ITEM_PROBE(%r10), %rax
        testl $POOL_FLAGS, PROBE_FLAGS(%rax)
        jne both_regs_full                  <- nodes are counted for all threads
        mov ITEM_COUNTERS(%r10), %rdx
        mov $HIT_WITH_CREDIT, %r8
        add %r8, TALLY(%r11,%rdx)           <- one hit more and one credit less, in one word of this thread
        js both_regs_no_credit
        cmp %rsi, TOP(%r11)
        jne both_regs_no_credit             <- a signal's handler has left a node between
        lea NODE(%rsi), %r8
        mov %r8, %r9                        <- r9 = the node, which the handler keeps
        mov %r8, TOP(%r11)                  <- reserved before it is filled: signals nest above it
        mov %r10, PROBES(%r8)
        mov 176(%rsp), %rsi
        mov 184(%rsp), %rdx
        mov %rdi, FRAME(%r8)
        movq $ON_STACK, MADE(%r8)
        mov %rsi, STUB(%r8)                 <- where the body will return to: the stub, by its return point
        mov %rdx, PARENT(%r8)               <- rdx = the parent, the third argument
        sub STACK(%r11), %rdi
        cmp STACK_SIZE(%r11), %rdi
        jae both_regs_made                  <- not on the thread's own stack, but on a coroutine's: note when
        both_regs_filled:
        mov RECORD_IP(%rsi), %rsi           <- rsi = the site, the second argument
        lea 5(%rsi), %rax
        mov %rax, REGS_IP(%rsp)             <- regs.ip is behind the site, as the kernel's handlers see it
        mov LIST_WORDS(%r10), %ecx
        test %ecx, %ecx
        je both_regs_no_data
        lea INLINE_DATA(%r8), %r8           <- r8 = the entry data, the fifth argument
        9: movq $0, -8(%r8,%rcx,8)
        dec %ecx
        jne 9b
        both_regs_call:
        mov ITEM_PROBE(%r10), %rdi          <- rdi = the probe, the first argument
        mov %rsp, %rcx                      <- rcx = the pt_regs, the fourth argument
        call *ITEM_ENTRY(%r10)
        test %eax, %eax
        jne both_regs_cancel                <- the handler declines the return: give the node back, ZF=0
        mov 184(%rsp), %rdx
        mov 176(%rsp), %rsi
        mov %rdx, PARENT(%r9)               <- the handler may have changed the return slot ...
        mov RECORD_IP(%rsi), %rsi
        add $5, %rsi
        cmp REGS_IP(%rsp), %rsi
        jne both_regs_redirect              <- ... or regs.ip: another function is to run instead
        GET_ALL                             <- with what the handler has stored in the pt_regs
        mov %fs:TASK, %r11
        movq $0, REC(%r11)                  <- out of tracing code
        lea 48(%rsp), %rsp
        cmp %esp, %esp                      <- ZF=1: hook the return
        ret
"""

ENTRY_REGS = """
# A site with one native probe whose handlers look at the registers.
#   stack inside: pt_regs (168 bytes), 8 bytes of padding, return into the stub at 176(%rsp), parent at 184(%rsp)
#   r11 = task, r10 = probe list, rdi = address of the return slot, r8 and r9 = the new node; then the handler's arguments
    .globl ftrace_both_regs
    .p2align 6
ftrace_both_regs:
    .cfi_startproc
    mov %rsp, $HIT_SP(%r11)
    mov %r10d, $LIST(%r11)
    cmpl $$0, $CONTEXT(%r11)
    jne ftrace_entry_full
$regs_image
    mov $TOP(%r11), %rsi
    cmp %rdi, $FRAME(%rsi)
    jbe both_regs_full
    lea $NODE(%rsi), %r8
    cmp $LIMIT(%r11), %r8
    ja both_regs_full
    mov $ITEM_PROBE(%r10), %rax
    testl $$$POOL_FLAGS, $PROBE_FLAGS(%rax)
    jne both_regs_full
    mov $ITEM_COUNTERS(%r10), %rdx
    mov $$$HIT_WITH_CREDIT, %r8
    add %r8, $TALLY(%r11,%rdx)
    js both_regs_no_credit
    cmp %rsi, $TOP(%r11)
    jne both_regs_no_credit
    lea $NODE(%rsi), %r8
    mov %r8, %r9
    mov %r8, $TOP(%r11)
    mov %r10, $PROBES(%r8)
    mov 176(%rsp), %rsi
    mov 184(%rsp), %rdx
    mov %rdi, $FRAME(%r8)
    movq $$$ON_STACK, $MADE(%r8)
    mov %rsi, $STUB(%r8)
    mov %rdx, $PARENT(%r8)
    sub $STACK(%r11), %rdi
    cmp $STACK_SIZE(%r11), %rdi
    jae both_regs_made
both_regs_filled:
    mov $RECORD_IP(%rsi), %rsi
    lea 5(%rsi), %rax
    mov %rax, $REGS_IP(%rsp)
    mov $LIST_WORDS(%r10), %ecx
    test %ecx, %ecx
    je both_regs_no_data
    lea $INLINE_DATA(%r8), %r8
9:  movq $$0, -8(%r8,%rcx,8)
    dec %ecx
    jne 9b
both_regs_call:
    mov $ITEM_PROBE(%r10), %rdi
    mov %rsp, %rcx
    call *$ITEM_ENTRY(%r10)
    test %eax, %eax
    jne both_regs_cancel
    mov 184(%rsp), %rdx
    mov 176(%rsp), %rsi
    mov %rdx, $PARENT(%r9)
    mov $RECORD_IP(%rsi), %rsi
    add $$5, %rsi
    cmp $REGS_IP(%rsp), %rsi
    jne both_regs_redirect
$unimage
    mov %fs:$TASK, %r11
    movq $$0, $REC(%r11)
    lea 48(%rsp), %rsp
    cmp %esp, %esp
    ret
both_regs_made:
$note_made
    mov $PARENT(%r8), %rdx
    jmp both_regs_filled
both_regs_no_data:
    xor %r8d, %r8d
    jmp both_regs_call
both_regs_redirect:  # the hooked function is not to run: its stand-in returns through the stub
    mov 176(%rsp), %rsi
    add $$$EXIT_FROM_RETURN, %rsi
    mov %rsi, 184(%rsp)
    mov %fs:$TASK, %r11
    movq $$0, $REC(%r11)
    jmp entry_redirect
both_regs_cancel:
    mov %fs:$TASK, %rdi
    lea 184(%rsp), %rsi
    call ftrace_cancel
entry_regs_done:
    mov 176(%rsp), %rsi
    mov $RECORD_IP(%rsi), %rsi
    add $$5, %rsi
    cmp $REGS_IP(%rsp), %rsi
    jne entry_redirect
$unimage
    lea 48(%rsp), %rsp
    test %rsp, %rsp
    ret
both_regs_no_credit:
    sub %r8, $TALLY(%r11,%rdx)
both_regs_full:
$unimage
    lea 48(%rsp), %rsp
    jmp ftrace_entry_full

# The same for a probe without an exit handler.
    .globl ftrace_entry_regs
    .p2align 6
ftrace_entry_regs:
    .cfi_startproc
    mov %rsp, $HIT_SP(%r11)
    mov %r10d, $LIST(%r11)
    cmpl $$0, $CONTEXT(%r11)
    jne ftrace_entry_full
$regs_image
    mov $ITEM_COUNTERS(%r10), %rdi
    mov 176(%rsp), %rsi
    mov 184(%rsp), %rdx
    incq $TALLY(%r11,%rdi)
    mov $RECORD_IP(%rsi), %rsi
    lea 5(%rsi), %rax
    mov %rax, $REGS_IP(%rsp)
    mov $ITEM_PROBE(%r10), %rdi
    xor %r8d, %r8d
    mov %rsp, %rcx
    call *$ITEM_ENTRY(%r10)
    mov %fs:$TASK, %r11
    movq $$0, $REC(%r11)
    jmp entry_regs_done
"""

EXIT_REGS = """
# Return of a call to such a site. r11 = node, r10 = probe list; every other register is the function's.
#   stack inside: pt_regs (168 bytes), padding, the node at 176(%rsp), the parent at 184(%rsp), where `ret` goes
    .globl ftrace_exit_regs
    .p2align 6
ftrace_exit_regs:
    .cfi_startproc
    .cfi_def_cfa_offset 0
    lea -8(%rsp), %r10
    cmp %r10, $FRAME(%r11)
    jne ftrace_exit_elsewhere
    mov %fs:$TASK, %r10
    cmpl $$0, $REC(%r10)
    jne ftrace_exit_from_list
    movl $$$FAST, $REC(%r10)
    lea -24(%rsp), %rsp
$regs_return_image
    mov %r11, 176(%rsp)
    mov $PROBES(%r11), %r10
    mov %fs:$TASK, %rax
    lea 184+$AT_RETURN(%rsp), %rsi
    mov %rsi, $HIT_SP(%rax)
    mov %r10d, $LIST(%rax)
    mov $STUB(%r11), %rsi
    mov $PARENT(%r11), %rdx
    xor %r8d, %r8d
    lea $INLINE_DATA(%r11), %rax
    cmpl $$0, $LIST_WORDS(%r10)
    cmovne %rax, %r8
    mov $ITEM_PROBE(%r10), %rdi
    mov $RECORD_IP(%rsi), %rsi
    mov %rsp, %rcx
    cld
    call *$ITEM_EXIT(%r10)
    mov %fs:$TASK, %r11
    mov 176(%rsp), %r8
    mov $PROBES(%r8), %r10
    mov $ITEM_PROBE(%r10), %rsi
    testl $$$POOL_FLAGS, $PROBE_FLAGS(%rsi)
    jne 9f
    mov $ITEM_COUNTERS(%r10), %rdx
    mov $$$CREDIT_UNIT, %rax
    add %rax, $TALLY(%r11,%rdx)
    testl $$$POOL_FLAGS, $PROBE_FLAGS(%rsi)
    jne 7f
5:  mov $PARENT(%r8), %rax
    mov %rax, 184(%rsp)
    cmp %r8, $TOP(%r11)
    jne 8f
    sub $$$NODE, %r8
    mov %r8, $TOP(%r11)
6:  movq $$0, $REC(%r11)
$unimage
    lea 56(%rsp), %rsp
    ret
9:  # the pool is shared
    lock incq $PROBE_POOL(%rsi)
    jmp 5b
7:  # ... already: a signal came in between
    mov %r11, %rdi
    call pool_donate
    mov %fs:$TASK, %r11
    mov 176(%rsp), %r8
    jmp 5b
8:  # a signal's handler has jumped past calls that it hooked
    mov %r11, %rdi
    mov %r8, %rsi
    call node_leave
    mov %fs:$TASK, %r11
    jmp 6b
"""
