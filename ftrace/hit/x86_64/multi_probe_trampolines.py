"""The trampolines of lists with several native probes, as assembly text (AT&T).

They do for each probe of the list what the fast trampolines do for one. A probe that is not plain at its turn takes the slow path
alone (ftrace.hit.dispatch). The call gets its node before it is known whether any probe needs it; `armed` has those that do.

The entry, expanded to its first `ret` (a test compares it). Registers and stack: at the head of MULTI_PROBE.

    ftrace_entry_multi:
        mov %rsp, HIT_SP(%r11)              <- a hit above it that was left by a jump is noticed by this
        mov %r10d, LIST(%r11)               <- the list is in use from here on
        KEEP_ARGUMENTS                      <- of ftrace.hit.x86_64.images: the arguments, in a pt_regs
        lea 184(%rsp), %rdx
        mov TOP(%r11), %rax                 <- the newest node ...
        cmp %rdx, FRAME(%rax)
        jbe 8f                              <- ... is of a call that was left: the slow path drops it
        lea NODE(%rax), %r9
        cmp LIMIT(%r11), %r9
        ja 8f                               <- the shadow stack is full
        cmpl $0, CONTEXT(%r11)
        jne 8f                              <- in a signal's handler: nothing has been changed
        movl $MULTI_PROBE, REC(%r11)        <- from here on, a signal sees a hit of this kind
        cmp %rax, TOP(%r11)
        jne 8f                              <- a signal's handler has left a node between
        mov %r9, TOP(%r11)                  <- reserved before it is filled: signals nest above it
        movq $0, ARMED(%r9)                 <- no probe waits for the return yet
        mov %r10, PROBES(%r9)
        mov %rdx, FRAME(%r9)                <- the address of the return slot
        movq $ON_STACK, MADE(%r9)
        mov 176(%rsp), %rsi
        mov %rsi, STUB(%r9)                 <- where the body will return to: the stub, by its return point
        sub STACK(%r11), %rdx
        cmp STACK_SIZE(%r11), %rdx
        jae entry_multi_made                <- not on the thread's own stack, but on a coroutine's: note when
        entry_multi_filled:
        mov 184(%rsp), %rdx
        mov %rdx, PARENT(%r9)
        mov LIST_WORDS(%r10), %ecx
        mov RECORD_IP(%rsi), %rsi           <- rsi = the site
        test %ecx, %ecx
        je 1f
        9: movq $0, INLINE_DATA-8(%r9,%rcx,8) <- the entry data of all probes, from the last word down
        dec %ecx
        jne 9b
        1:
        ENTRY_SP_IP                         <- completes the pt_regs; rcx = it
        mov ITEM_PROBE(%r10), %rdi
        2: mov ITEM_COUNTERS(%r10), %rax    <- for each probe: rdi = the probe, r10 = list + its offset
        mov %fs:TASK, %r11
        cmpl $0, PROBE_FLAGS(%rdi)
        jne 6f                              <- not plain at this moment: multi_probe_one, the slow path for it alone
        mov ITEM_TAKES(%r10), %r8
        add %r8, TALLY(%r11,%rax)           <- one hit more and, with an exit handler, one credit less
        js 5f                               <- no credit left: taken back, then as 6
        mov ITEM_BIT(%r10), %r8
        or %r8, ARMED(%r9)                  <- it waits for the return; the bit is 0 without an exit handler
        ITEM_DATA                           <- r8 = its entry data in the node
        call *ITEM_ENTRY(%r10)
        test %eax, %eax
        jne 4f                              <- declined: multi_probe_cancel clears the bit and gives the credit back
        3: add $ITEM, %r10
        mov ITEM_PROBE(%r10), %rdi
        test %rdi, %rdi                     <- 0 behind the last item
        jne 2b
        mov %fs:TASK, %r11
        cmpq $0, ARMED(%r9)
        je 7f                               <- nobody waits: give the node back, ZF=0
        mov 184(%rsp), %rdx
        mov %rdx, PARENT(%r9)               <- a handler may have changed the return slot
        GET_ARGUMENTS
        movq $0, REC(%r11)                  <- out of tracing code
        cmp %esp, %esp                      <- ZF=1: hook the return
        ret
"""

MULTI_PROBE = """
# A site with several native probes, which look at no registers but those that arguments are in.
#   stack inside: pt_regs (168 bytes), 8 bytes of padding, return into the stub at 176(%rsp), return slot
#   r9 = the node, r10 = the list, later advanced by an Item for each probe
#   for the handlers: rdi = probe, rsi = ip, rdx = parent, rcx = pt_regs, r8 = data
    .globl ftrace_entry_multi
    .p2align 6
ftrace_entry_multi:
    .cfi_startproc
    mov %rsp, $HIT_SP(%r11)
    mov %r10d, $LIST(%r11)
$keep_arguments
    lea 184(%rsp), %rdx
    mov $TOP(%r11), %rax
    cmp %rdx, $FRAME(%rax)
    jbe 8f
    lea $NODE(%rax), %r9
    cmp $LIMIT(%r11), %r9
    ja 8f
    cmpl $$0, $CONTEXT(%r11)
    jne 8f
    movl $$$MULTI_PROBE, $REC(%r11)
    cmp %rax, $TOP(%r11)
    jne 8f
    mov %r9, $TOP(%r11)
    movq $$0, $ARMED(%r9)
    mov %r10, $PROBES(%r9)
    mov %rdx, $FRAME(%r9)
    movq $$$ON_STACK, $MADE(%r9)
    mov 176(%rsp), %rsi
    mov %rsi, $STUB(%r9)
    sub $STACK(%r11), %rdx
    cmp $STACK_SIZE(%r11), %rdx
    jae entry_multi_made
entry_multi_filled:
    mov 184(%rsp), %rdx
    mov %rdx, $PARENT(%r9)
    mov $LIST_WORDS(%r10), %ecx
    mov $RECORD_IP(%rsi), %rsi
    test %ecx, %ecx
    je 1f
9:  movq $$0, $INLINE_DATA-8(%r9,%rcx,8)
    dec %ecx
    jne 9b
1:
$entry_sp_ip
    mov $ITEM_PROBE(%r10), %rdi
2:  mov $ITEM_COUNTERS(%r10), %rax
    mov %fs:$TASK, %r11
    cmpl $$0, $PROBE_FLAGS(%rdi)
    jne 6f
    mov $ITEM_TAKES(%r10), %r8
    add %r8, $TALLY(%r11,%rax)
    js 5f
    mov $ITEM_BIT(%r10), %r8
    or %r8, $ARMED(%r9)
$item_data
    call *$ITEM_ENTRY(%r10)
    test %eax, %eax
    jne 4f
3:  add $$$ITEM, %r10
    mov $ITEM_PROBE(%r10), %rdi
    test %rdi, %rdi
    jne 2b
    mov %fs:$TASK, %r11
    cmpq $$0, $ARMED(%r9)
    je 7f
    mov 184(%rsp), %rdx
    mov %rdx, $PARENT(%r9)
$get_arguments
    movq $$0, $REC(%r11)
    cmp %esp, %esp
    ret
4:  cmpq $$0, $ITEM_BIT(%r10)
    je 3b
$keep_walk
    mov %fs:$TASK, %rdi
    mov %r9, %rsi
    lea $ITEMS(%r10), %rdx
    call multi_probe_cancel
$get_walk
    jmp 3b
5:  sub %r8, $TALLY(%r11,%rax)
6:
$keep_walk
    mov %r11, %rdi
    mov %r9, %rsi
    lea $ITEMS(%r10), %rdx
    call multi_probe_one
$get_walk
    jmp 3b
7:  # nobody waits for the return: give the node back
    cmp %r9, $TOP(%r11)
    jne 9f
    sub $$$NODE, %r9
    mov %r9, $TOP(%r11)
1:
$get_arguments
    movq $$0, $REC(%r11)
    test %rsp, %rsp
    ret
9:  # a signal's handler has jumped past calls that it hooked
    mov %r11, %rdi
    mov %r9, %rsi
    call node_leave
    mov %fs:$TASK, %r11
    jmp 1b
8:
$get_arguments
    jmp ftrace_entry_full
entry_multi_made:
    mov %r9, %r8
$note_made
    jmp entry_multi_filled

# Return of a call to such a site. r11 = node (kept in r9), r10 = probe list; rax, rdx, rcx = the function's results.
#   stack inside: pt_regs (168 bytes), then the parent in the return slot, where `ret` and unwinders find it
    .globl ftrace_exit_multi
    .p2align 6
ftrace_exit_multi:
    .cfi_startproc
    .cfi_def_cfa_offset 0
$begin_exit
    push $PARENT(%r11)
$keep_results
    mov $STUB(%r11), %rsi
    mov $PARENT(%r11), %rdx
    mov %r11, %r9
    mov $RECORD_IP(%rsi), %rsi
$exit_sp_ip
    movzwl $LIST_LAST(%r10), %eax
    add %rax, %r10
1:  mov $ITEM_BIT(%r10), %rax
    mov $ITEM_PROBE(%r10), %rdi
    test %rax, $ARMED(%r9)
    je 2f
    testl $$$OFF_FLAGS, $PROBE_FLAGS(%rdi)
    jne 2f
$item_data
    call *$ITEM_EXIT(%r10)
2:  sub $$$ITEM, %r10
    cmp %r10, $PROBES(%r9)
    jbe 1b
    mov %fs:$TASK, %r11
    mov $$$CREDIT_UNIT, %r8
3:  add $$$ITEM, %r10
    mov $ITEM_PROBE(%r10), %rdi
    test %rdi, %rdi
    je 5f
    mov $ITEM_BIT(%r10), %rax
    test %rax, $ARMED(%r9)
    je 3b
    testl $$$POOL_FLAGS, $PROBE_FLAGS(%rdi)
    jne 6f
    mov $ITEM_COUNTERS(%r10), %rax
    add %r8, $TALLY(%r11,%rax)
    testl $$$POOL_FLAGS, $PROBE_FLAGS(%rdi)
    je 3b
    push %r8  # the pool is shared already: a signal came in between
    push %r9
    push %r10
    push %r11
    mov %rdi, %rsi
    mov %r11, %rdi
    call pool_donate
    pop %r11
    pop %r10
    pop %r9
    pop %r8
    jmp 3b
5:  cmp %r9, $TOP(%r11)
    jne 8f
    sub $$$NODE, %r9
    mov %r9, $TOP(%r11)
7:  movq $$0, $REC(%r11)
$get_results
    ret
6:  # the pool is shared
    lock incq $PROBE_POOL(%rdi)
    jmp 3b
8:  # a signal's handler has jumped past calls that it hooked
    mov %r11, %rdi
    mov %r9, %rsi
    call node_leave
    mov %fs:$TASK, %r11
    jmp 7b
"""

NOTHING = """
# The entry handler of a probe in such a list that has none.
    .globl ftrace_nothing
ftrace_nothing:
    .cfi_startproc
    xor %eax, %eax
    ret
"""

ITEM_DATA = """
    mov $ITEM_IN_NODE(%r10), %r8d
    lea (%r9,%r8), %rax
    test %r8d, %r8d
    cmovne %rax, %r8"""
"""r8 = the entry data of an item, or 0 if it has none. Uses rax."""

WALK = ("rsi", "rdx", "rcx", "r8", "r9", "r10")
"""Registers that are saved while a probe takes the slow path; r8 aligns the stack."""
