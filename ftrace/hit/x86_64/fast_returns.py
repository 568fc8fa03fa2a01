"""The fast trampolines of returns: a site with one probe, whose exit handler is a native function, as assembly text (AT&T).

Registers and stack at a return: ftrace.hit.x86_64.trampolines. One of them expanded to its first `ret`: a handler that uses no
registers, no entry data (a test compares it).

    registers  r11 = node, kept in r9; r10 = probe list; rax, rdx, rcx are the function's results
    stack      8(%rsp)  the parent, in the return slot           below %rsp at the beginning
                (%rsp)  rdx

    ftrace_exit_fast:
        lea -8(%rsp), %rsi                  <- the return slot, which the body's `ret` has just left
        cmp %rsi, FRAME(%r11)
        jne ftrace_exit_elsewhere           <- calls above it were left by a jump, or it is on a coroutine's stack
        mov %fs:TASK, %rdi
        cmpl $0, REC(%rdi)
        jne ftrace_exit_from_list           <- in tracing code already
        movl $FAST, REC(%rdi)               <- from here on unregistering waits for it ...
        lea AT_RETURN(%rsi), %rsi
        mov %rsi, HIT_SP(%rdi)
        mov %r10d, LIST(%rdi)
        mov ITEM_PROBE(%r10), %rdi
        testl $OFF_FLAGS, PROBE_FLAGS(%rdi)
        jne 4f                              <- ... but the list was read before, so the probe may be going
        mov STUB(%r11), %rsi
        push PARENT(%r11)                   <- back into the return slot, for `ret` and for unwinders
        push %rdx
        mov PARENT(%r11), %rdx
        mov %r11, %r9
        xor %r8d, %r8d                      <- no entry data
        mov RECORD_IP(%rsi), %rsi           <- rsi = the site; rdi = the probe; rdx = the parent
        call *ITEM_EXIT(%r10)
        mov %fs:TASK, %r11
        testl $POOL_FLAGS, PROBE_FLAGS(%rdi)
        jne 6f                              <- the credit goes to all threads
        mov ITEM_COUNTERS(%r10), %rsi
        mov $CREDIT_UNIT, %r8
        add %r8, TALLY(%r11,%rsi)           <- the credit is back
        testl $POOL_FLAGS, PROBE_FLAGS(%rdi)
        jne 7f                              <- a signal has made the pool a shared one in between
    5:  cmp %r9, TOP(%r11)
        jne 8f                              <- the handler itself was jumped past
        sub $NODE, %r9
        mov %r9, TOP(%r11)                  <- the node is free
        movq $0, REC(%r11)
        pop %rdx
        ret                                 <- to the parent
"""

from __future__ import annotations

from collections.abc import Iterator

from ftrace.hit.x86_64 import images
from ftrace.hit.x86_64.assembly_text import with_blocks

BEGIN_EXIT = """    lea -8(%rsp), %rsi
    cmp %rsi, $FRAME(%r11)
    jne ftrace_exit_elsewhere
    mov %fs:$TASK, %rdi
    cmpl $$0, $REC(%rdi)
    jne ftrace_exit_from_list
    movl $$$FAST, $REC(%rdi)
    lea $AT_RETURN(%rsi), %rsi
    mov %rsi, $HIT_SP(%rdi)
    mov %r10d, $LIST(%rdi)"""
"""The beginning of a return with node r11 and list r10: a return that is not plain takes the slow path. Uses rsi and rdi.

The list was read before this task was marked as inside. So each probe is checked afterwards: if it has been unregistered in
between, nothing waits for this task.
"""

EXIT_FAST = """
# Return of a call to a site with one native probe that has an exit handler.
#   r11 = node (kept in r9), r10 = probe list; rax, rdx, rcx = the function's results
#   stack inside: what is saved, then the parent in the return slot, where `ret` and unwinders find it
    .globl $name
    .p2align 6
$name:
    .cfi_startproc
    .cfi_def_cfa_offset 0
$begin_exit
    mov $ITEM_PROBE(%r10), %rdi
    testl $$$OFF_FLAGS, $PROBE_FLAGS(%rdi)
    jne 4f
    mov $STUB(%r11), %rsi
    push $PARENT(%r11)
$save
    mov $PARENT(%r11), %rdx
    mov %r11, %r9
$data
    mov $RECORD_IP(%rsi), %rsi
$regs
$call
    mov %fs:$TASK, %r11
    testl $$$POOL_FLAGS, $PROBE_FLAGS(%rdi)
    jne 6f
    mov $ITEM_COUNTERS(%r10), %rsi
    mov $$$CREDIT_UNIT, %r8
    add %r8, $TALLY(%r11,%rsi)
    testl $$$POOL_FLAGS, $PROBE_FLAGS(%rdi)
    jne 7f
5:  cmp %r9, $TOP(%r11)
    jne 8f
    sub $$$NODE, %r9
    mov %r9, $TOP(%r11)
    movq $$0, $REC(%r11)
$restore
    ret
6:  # the pool is shared
    lock incq $PROBE_POOL(%rdi)
    jmp 5b
7:  # ... already: a signal came in between
    push %rax
    push %rcx
    push %r9
    push %r11
    mov %rdi, %rsi
    mov %r11, %rdi
    call pool_donate
    pop %r11
    pop %r9
    pop %rcx
    pop %rax
    jmp 5b
8:  # a signal's handler has jumped past calls that it hooked
    push %rax
    push %rcx
    mov %r11, %rdi
    mov %r9, %rsi
    call node_leave
    mov %fs:$TASK, %r11
    pop %rcx
    pop %rax
    movq $$0, $REC(%r11)
$restore
    ret
4:  mov %fs:$TASK, %rdi
    movq $$0, $REC(%rdi)
    jmp ftrace_exit_from_list
"""

CALL_EXIT = """
    call *$ITEM_EXIT(%r10)"""
CALL_LEAN_EXIT = """
    mov %rax, %rdx
    mov %fs:$TASK, %rcx
    push %r10
    push %r9
    call *$PROBE_LEAN_EXIT(%rdi)
    pop %r9
    pop %r10
    mov $ITEM_PROBE(%r10), %rdi"""

CALL_EARLY_EXIT = """
    mov $PROBE_EARLY(%rdi), %rdi
    mov (%rdi), %r11
    test %r11, %r11
    je 1f
    push %rcx
    push %rax
    push %r9
    push %r10
    mov %rax, %rcx
    mov %fs:$TASK, %r9
    call *%r11
    test %eax, %eax
    pop %r10
    pop %r9
    pop %rax
    pop %rcx
    je 1f
    mov $ITEM_PROBE(%r10), %rdi"""
"""The return is dealt with before results are saved for the handler (Early in ftrace.hit.records), which is called otherwise."""
LEAVE_TO_HANDLER = """1:
$restore
    lea 8(%rsp), %rsp
    mov %fs:$TASK, %rdi
    movq $$0, $REC(%rdi)
    mov %r9, %r11
    jmp $otherwise
"""

EXIT_NO_DATA = """
    xor %r8d, %r8d"""
EXIT_INLINE_DATA = """
    lea $INLINE_DATA(%r11), %r8"""

PLAIN_EXIT = {"save": images.push(("rdx",)), "restore": images.pop(("rdx",)), "regs": ""}
WITH_VALUE = {"save": images.KEEP_VALUE, "restore": images.GET_VALUE, "regs": images.VALUE_ONLY}
WITH_RESULTS = {"save": images.KEEP_RESULTS, "restore": images.GET_RESULTS, "regs": images.EXIT_SP_IP}


def fast_returns() -> Iterator[str]:
    """The fast trampolines of returns: by the registers that their handlers use, with and without entry data."""
    for size, data in (("", EXIT_NO_DATA), ("_data", EXIT_INLINE_DATA)):
        for looks, saving in (("fast", PLAIN_EXIT), ("value", WITH_VALUE), ("results", WITH_RESULTS)):
            yield with_blocks(
                EXIT_FAST, {"name": f"ftrace_exit_{looks}{size}", "data": data, "call": CALL_EXIT, **saving}
            )
    lean = {"data": EXIT_INLINE_DATA, "call": CALL_LEAN_EXIT, **WITH_VALUE, "regs": ""}
    yield with_blocks(EXIT_FAST, {"name": "ftrace_exit_lean", **lean})
    for data in ("", "_data"):
        early = {"call": CALL_EARLY_EXIT, "data": EXIT_INLINE_DATA, **PLAIN_EXIT}
        names = {"name": f"ftrace_early_exit_results{data}", "otherwise": f"ftrace_exit_results{data}"}
        yield with_blocks(EXIT_FAST + LEAVE_TO_HANDLER, early | names)
