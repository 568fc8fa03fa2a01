"""The handlers that ftrace's fast trampolines call for a single kprobe or kretprobe, as assembly text (AT&T).

Called as any native handler of a probe list (ftrace.hit.x86_64.trampolines), under the same conditions:

    rdi = Probe, whose `action` is the Child or Kretprobe   rsi = ip   rdx = the parent   rcx = pt_regs (the *_regs ones only)
    r8 = data of the return node, or 0 if there is none     returns eax = 0 to continue, else to cancel the return

The kretprobe_unlocked handlers are for kretprobes that are not on an ftrace location (kprobes.fast.return_stubs).

Every register but r11 and, at an entry, rax is preserved. The user's handlers (preserve_most) preserve them too; they are
called with rdi = the Child or the instance and rsi = pt_regs. An instance directly precedes its data: it is the node or, on a
function with other probes, the first part of the entry data.

The simplest of them, expanded to its first `ret` (a test compares it): a pre_handler that uses no registers.

    kprobe_single:
        0:
        mov %fs:TASK, %r11
        cmpq $0, KPROBE(%r11)
        jne 8f                              <- a kprobe is running in this thread: a miss, unless its handlers have been left
        push %rdi
        mov ACTION(%rdi), %rdi              <- rdi = the Child, the pre_handler's `p`
        movl $HIT_ACTIVE, STATUS(%r11)      <- for faults in the handler, and for get_kprobe_ctlblk
        lea IN_STUB(%rsp), %rax
        mov %rax, FRAME(%r11)               <- a hit at a higher stack pointer shows that the handler was left by a jump
        mov %rdi, KPROBE(%r11)              <- last: a signal's hit from here on is recursion
        call *PRE(%rdi)                     <- keeps every register but rax and r11
        mov %fs:TASK, %r11
        movq $0, KPROBE(%r11)               <- the hit is over
        movq $0, FRAME(%r11)
        movl $0, STATUS(%r11)
        pop %rdi
        xor %eax, %eax                      <- continue; the result matters with registers only (kprobe_single_regs)
        ret
"""

from __future__ import annotations

from collections.abc import Mapping
from string import Template

from ftrace.hit.x86_64.assembly_text import with_blocks, with_call_frames

_BEGIN = """0:  mov %fs:$TASK, %r11
    cmpq $$0, $KPROBE(%r11)
    jne 8f"""
_RUNNING = """    movl $$$HIT_ACTIVE, $STATUS(%r11)
    lea $IN_STUB(%rsp), %rax
    mov %rax, $FRAME(%r11)
    mov %rdi, $KPROBE(%r11)"""
_FINISH = """    mov %fs:$TASK, %r11
    movq $$0, $KPROBE(%r11)
    movq $$0, $FRAME(%r11)
    movl $$0, $STATUS(%r11)"""
# A fast trampoline holds ftrace's recursion lock. A kretprobe's return must not hold it, nor its entry outside of ftrace
# locations, so it is released during the call. On the slow path it is not held, or the calling callback keeps it.
_UNLOCK = """    cmpl $$$FAST, $REC(%r11)
    jne 3f
    movl $$$FAST_UNLOCKED, $REC(%r11)
3:"""
_LOCK = """    cmpl $$$FAST_UNLOCKED, $REC(%r11)
    jne 3f
    movl $$$FAST, $REC(%r11)
3:"""
_RUNS = """8:  # a kprobe is running, unless its handlers have been left
    call kprobe_single_runs
    je 0b"""
_MISSES = """$runs
    mov $ACTION(%rdi), %rax
    mov $RP_CHILD(%rax), %rax
    lock incq $CHILD_MISSED(%rax)
    mov $$1, %eax
    ret
9:  # no instance
    mov $ACTION(%rdi), %rax
    lock incq $RP_MISSED(%rax)
    mov $$1, %eax
    ret"""

_RUNS_ROUTINE = """
# Whether a kprobe is still running: ZF is set if it is not. Every register is preserved.
#   r11 = task
    .p2align 4
kprobe_single_runs:
    .cfi_startproc
    push %rax
    push %rcx
    push %rdx
    push %rdi
    push %rsi
    push %r8
    push %r9
    push %r10
    push %r11
    mov %r11, %rdi
    mov %rsp, %rsi
    call kprobe_still_running
    test %al, %al
    pop %r11
    pop %r10
    pop %r9
    pop %r8
    pop %rsi
    pop %rdi
    pop %rdx
    pop %rcx
    pop %rax
    ret
"""

_KPROBE = """
# A kprobe whose pre_handler does not use the registers (KP-52).
    .globl kprobe_single
    .p2align 6
kprobe_single:
    .cfi_startproc
$begin
    push %rdi
    mov $ACTION(%rdi), %rdi
$running
    call *$PRE(%rdi)
$finish
    pop %rdi
    xor %eax, %eax
    ret
$runs
    mov $ACTION(%rdi), %rax
    lock incq $CHILD_MISSED(%rax)
    xor %eax, %eax
    ret

# The pre_handler of an event. The event's shortcut runs first, which touches nothing of a kprobe's hit and deals with most hits
# of an event that has a filter; it returns 0 if it has done nothing.
#   r11 = the Child, rax = its action, the shortcut   stack inside: where the call goes on, then rsi, rdi
    .globl kprobe_single_event
    .p2align 6
kprobe_single_event:
    .cfi_startproc
    mov $ACTION(%rdi), %r11
    mov $CHILD_ACTION(%r11), %rax
    mov $SHORTCUT(%rax), %rax
    test %rax, %rax
    je kprobe_single_regs
    push %rdi
    push %rsi
    mov %r11, %rdi
    mov %rcx, %rsi
    call *%rax
    pop %rsi
    pop %rdi
    test %eax, %eax
    je kprobe_single_regs
    xor %eax, %eax
    ret

# A kprobe whose pre_handler does: it sees ip+1; if it returns non-zero, the thread continues at the ip that it has left.
#   stack inside: where the call goes on, then rsi, rdi
    .globl kprobe_single_regs
    .p2align 6
kprobe_single_regs:
    .cfi_startproc
$begin
    push %rdi
    push %rsi
    push $REGS_IP(%rcx)
    lea 1(%rsi), %rax
    mov %rax, $REGS_IP(%rcx)
    mov $ACTION(%rdi), %rdi
    mov %rcx, %rsi
$running
    call *$PRE(%rdi)
$finish
    test %eax, %eax
    pop %rax
    jne 1f
    mov %rax, $REGS_IP(%rcx)
1:  pop %rsi
    pop %rdi
    xor %eax, %eax
    ret
$runs
    mov $ACTION(%rdi), %rax
    lock incq $CHILD_MISSED(%rax)
    xor %eax, %eax
    ret
"""

_BARE = """
# Entry of a kretprobe that has no entry_handler, and whose handler does not use the instance (KP-78, KP-81).
    .globl kretprobe_single_bare
    .p2align 6
kretprobe_single_bare:
    .cfi_startproc
$begin
    test %r8, %r8
    je 9f
    xor %eax, %eax
    ret
$misses
"""

_EVENT = """
# Return of a call whose kretprobe event has no entry_handler: kretprobe_single_bare was called at the entry, since most returns
# are recorded before the handler is called. It looks at no field of the instance but this.
    .globl kretprobe_single_event_return
    .p2align 6
kretprobe_single_event_return:
    .cfi_startproc
    mov $ACTION(%rdi), %r11
    mov %r11, $RI_RP-$HEADER(%r8)
    jmp kretprobe_single_return
"""

_ENTRY = """
# Entry of any other kretprobe.
#   rdi = the instance, rax = the Kretprobe
    .globl $name
    .p2align 6
$name:
    .cfi_startproc
$begin
    test %r8, %r8
    je 9f
    push %rdi
    push %rsi
    mov $ACTION(%rdi), %rax
    lea -$HEADER(%r8), %rdi
    mov %rax, $RI_RP(%rdi)
    mov %rdx, $RI_RET(%rdi)
    mov $TID(%r11), %esi
    mov %rsi, $RI_TASK(%rdi)
    cmp %rdi, $TOP(%r11)
    jne 7f
6:  cmpq $$0, $RP_ENTRY(%rax)
    je 5f
    mov $RP_CHILD(%rax), %rsi
    movl $$$HIT_ACTIVE, $STATUS(%r11)
    push %rsi
    lea $IN_STUB+8(%rsp), %rsi
    mov %rsi, $FRAME(%r11)
    pop %rsi
    mov %rsi, $KPROBE(%r11)
$before
    mov %rcx, %rsi
    call *$RP_ENTRY(%rax)
$after
$finish
    pop %rsi
    pop %rdi
    ret
5:  pop %rsi
    pop %rdi
    xor %eax, %eax
    ret
7:  # other probes are here, too
    push %rax
    push %rdx
    push %rcx
    push %rdi
    push %r8
    push %r9
    push %r10
    push %r11
    mov %rdi, %rsi
    mov %r11, %rdi
    call kretprobe_in_list
    pop %r11
    pop %r10
    pop %r9
    pop %r8
    pop %rdi
    pop %rcx
    pop %rdx
    pop %rax
    jmp 6b
$misses
"""

_RETURN = """
# Return of a call (KP-79). rax is the function's result.
    .globl kretprobe_single_return
    .p2align 6
kretprobe_single_return:
    .cfi_startproc
    push %rdi
    push %rsi
    mov $ACTION(%rdi), %rsi
    mov %fs:$TASK, %r11
$unlock
    mov $RP_CHILD(%rsi), %rdi
    mov %rdi, $KPROBE_CHILD(%r11)
    movl $$$HIT_ACTIVE, $STATUS(%r11)
    lea $RETURNING(%rsp), %rdi
    mov %rdi, $FRAME(%r11)
    incl $PREEMPT(%r11)
    mov $KPROBE_CHILD(%r11), %rdi
    mov %rdi, $KPROBE(%r11)
    mov $RP_HANDLER(%rsi), %r11
    lea -$HEADER(%r8), %rdi
    mov %rcx, %rsi
    call *%r11
$finish
    movq $$0, $KPROBE_CHILD(%r11)
    decl $PREEMPT(%r11)
$lock
    pop %rsi
    pop %rdi
    ret

# Return of a call whose kretprobe has no handler.
    .globl kretprobe_single_no_return
    .p2align 4
kretprobe_single_no_return:
    .cfi_startproc
    ret
"""

# The entry handler of a kretprobe sees ip+1; a change of ip has no effect.
_BEFORE = """    push $REGS_IP(%rcx)
    mov 8(%rsp), %rsi
    inc %rsi
    mov %rsi, $REGS_IP(%rcx)"""
_AFTER = "    pop $REGS_IP(%rcx)"


def assembly(constants: Mapping[str, int | str]) -> str:
    """The assembly text; `constants`: values of its names (kprobes.hit.assembly)."""
    shared = {"begin": _BEGIN, "running": _RUNNING, "finish": _FINISH, "misses": _MISSES, "runs": _RUNS}
    shared |= {"unlock": _UNLOCK, "lock": _LOCK}
    entries = (
        ("kretprobe_single", "", ""),
        ("kretprobe_single_regs", _BEFORE, _AFTER),
        ("kretprobe_unlocked", _UNLOCK, ""),
        ("kretprobe_unlocked_regs", f"{_UNLOCK}\n{_BEFORE}", _AFTER),
    )
    texts = [with_blocks(text, shared) for text in (_RUNS_ROUTINE, _KPROBE, _BARE, _EVENT, _RETURN)]
    texts += [
        with_blocks(_ENTRY, {**shared, "name": name, "before": before, "after": after})
        for name, before, after in entries
    ]
    return "    .text\n" + with_call_frames(Template("\n".join(texts)).substitute(constants))
