"""The trampolines of functions without stubs, as assembly text (AT&T).

The fast ones are those of ftrace.hit.x86_64.fast_trampolines, with what detours and preserving stubs have saved between the
return into them and the return slot: at an entry rax, r10, r11 and the flags, at a return those and every register that a
handler's caller may change. Other cases go to the slow path's ftrace_entry_preserving_all and ftrace_exit_preserving_all before
anything has been changed.

At an entry: r11 = task, r10 = probe list; (%rsp) the return into the detour, then 32 bytes, then the return slot.

The return of a probe whose handler uses no registers and no entry data, expanded to its first `ret` (a test compares it):

    registers  r11 = task, r10 = node, rax = probe list; all others are the program's
    stack      88(%rsp)  return slot: the parent's address       40(%rsp) at the beginning
               80(%rsp)  return into the return stub             32(%rsp) at the beginning
               48 to 72  flags, r11, r10, rax, kept by ftrace_exit_preserving
                0 to 40  r9, r8, rcx, rdx, rsi, rdi

    preserving_exit_fast:
        push %rdi
        push %rsi
        push %rdx
        push %rcx
        push %r8
        push %r9
        mov ITEM_PROBE(%rax), %rdi          <- rdi = the probe, the handler's first argument
        testl $OFF_FLAGS, PROBE_FLAGS(%rdi)
        jne 4f                              <- disabled or being unregistered: the slow path, with nothing changed
        mov %r10, %r9                       <- r9 and r10: the handler keeps every register but rax and r11
        mov %rax, %r10
        mov PARENT(%r9), %rdx               <- rdx = the parent, the third argument
        mov STUB(%r9), %rsi
        mov %rdx, 88(%rsp)                  <- into the return slot, where the last `ret` and unwinders find it
        mov RECORD_IP(%rsi), %rsi           <- rsi = the site, the second argument
        xor %r8d, %r8d                      <- no entry data
        call *ITEM_EXIT(%r10)
        mov %fs:TASK, %r11
        testl $POOL_FLAGS, PROBE_FLAGS(%rdi)
        jne 6f                              <- nodes are counted for all threads
        mov ITEM_COUNTERS(%r10), %rsi
        mov $CREDIT_UNIT, %r8
        add %r8, TALLY(%r11,%rsi)           <- the credit of this call goes back to this thread
        testl $POOL_FLAGS, PROBE_FLAGS(%rdi)
        jne 7f                              <- the pool has become shared in between, in a signal's handler
        5: cmp %r9, TOP(%r11)
        jne 8f                              <- nodes above it are of calls that were left
        sub $NODE, %r9
        mov %r9, TOP(%r11)
        3: movq $0, REC(%r11)               <- out of tracing code
        pop %r9
        pop %r8
        pop %rcx
        pop %rdx
        pop %rsi
        pop %rdi
        pop %rax
        add $0x7f, %al                      <- OF as `seto` has kept it ...
        sahf                                <- ... and the other flags
        pop %r11
        pop %r10
        pop %rax
        ret                                 <- into the return stub, which returns to the parent
"""

from __future__ import annotations

from collections.abc import Iterator

from ftrace.hit.x86_64 import images
from ftrace.hit.x86_64.assembly_text import with_blocks
from ftrace.hit.x86_64.entry_detour import KEPT
from ftrace.hit.x86_64.fast_trampolines import (
    BOTH_FAST,
    ENTRY_FAST,
    INLINE_DATA,
    NO_DATA,
    NO_ENTRY,
    ONE_WORD,
    PLAIN_ENTRY,
    WITH_ARGUMENTS,
    WITH_SP,
)
from ftrace.hit.x86_64.images import whole
from ftrace.hit.x86_64.preserving_stub import RETURN_PRESERVING, WHOLE_FLAGS

ENTRY_PRESERVING = f"""
# Entry of a function without a stub, called by its detour. Every register and flag is live. Vector registers are kept by whoever
# calls something that touches them.
#   stack inside: pt_regs (168 bytes), return into the detour at 168(%rsp), return slot at 176(%rsp)
#   rbx = the stack pointer, over the call
    .globl ftrace_entry_preserving_all
    .type ftrace_entry_preserving_all,@function
    .p2align 6
ftrace_entry_preserving_all:
    .cfi_startproc
{whole("push %rax")}
    cld
    lea 176(%rsp), %rax
    mov %rax, $REGS_SP(%rsp)
    mov %rsp, %rdi
    mov 168(%rsp), %rsi
    mov $STUB_OF_SLOW(%rsi), %rsi
    mov %rsp, %rbx
    .cfi_rel_offset %rbx, $REGS_BX
    .cfi_def_cfa_register %rbx
    and $$-16, %rsp
    call dispatch_slow
    mov %rbx, %rsp
    .cfi_def_cfa %rsp, 176
    cmp $$$REDIRECTED, %eax
    je 7f
    cmp $$$HOOKED, %eax
    je 6f
    addq $$$STEP_OVER, 168(%rsp)
6:
    .cfi_def_cfa %rsp, 176
{RETURN_PRESERVING}
7:  # a handler has sent the call elsewhere
    .cfi_def_cfa %rsp, 176
    mov $REGS_IP(%rsp), %rax
    mov %rax, 168(%rsp)
    jmp 6b
{WHOLE_FLAGS}

# What a list names as its entry trampoline that the fast path does not serve, and where that leaves to: the detour's slow path.
    .globl ftrace_preserving_full
    .p2align 4
ftrace_preserving_full:
    .cfi_startproc
    movq $$0, $REC(%r11)
    subq $$$CALLED_TO_SLOW, (%rsp)
    ret
"""

_SAVED = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")
_ALL_BUT_RAX = (*_SAVED, "r10", "r11")
_UNSAVED = "\n".join(f"    pop %{register}" for register in reversed(_SAVED))
_GET_FLAGS = """    pop %rax
    add $$0x7f, %al
    sahf
    pop %r11
    pop %r10
    pop %rax"""

EXIT_FAST_PRESERVING = f"""
# The return path of a hooked call, called by its return stub.
#   rax = list, r10 = node, r11 = task
#   stack inside: flags, r11, r10, rax, return into the stub at 32(%rsp), return slot at 40(%rsp)
    .globl ftrace_exit_preserving
    .type ftrace_exit_preserving,@function
    .p2align 6
ftrace_exit_preserving:
    .cfi_startproc
    push %rax
    push %r10
    push %r11
    lahf
    seto %al
    push %rax
    mov %fs:$TASK, %r11
    test %r11, %r11
    je 9f
    mov $TOP(%r11), %r10
    mov 32(%rsp), %rax
    add $$$STUB_OF_RETURN, %rax
    cmp %rax, $STUB(%r10)
    jne 9f
    lea 40(%rsp), %rax
    cmp %rax, $FRAME(%r10)
    jne 8f
7:  cmpl $$0, $REC(%r11)
    jne 9f
    lea 40+$AT_RETURN(%rsp), %rax
    movl $$$FAST, $REC(%r11)
    mov %rax, $HIT_SP(%r11)
    mov $PROBES(%r10), %rax
    mov %eax, $LIST(%r11)
    jmp *$LIST_EXIT(%rax)
8:  # another frame than the one on top, or one on a coroutine's stack
    sub $$$OFF_STACK, %rax
    cmp %rax, $FRAME(%r10)
    jne 9f
    cmpl $$0, $CONTEXT(%r11)
    jne 9f
{images.push(_ALL_BUT_RAX)}
    mov %r10, %rdi
    call was_made_last
    test %al, %al
{images.pop(_ALL_BUT_RAX)}
    je 9f
    lea 40(%rsp), %rax
    mov %rax, $FRAME(%r10)
    jmp 7b
9:
{_GET_FLAGS}
    jmp ftrace_exit_preserving_all

# The exit trampoline of lists whose calls return through the slow path.
    .globl ftrace_exit_preserving_full
    .p2align 4
ftrace_exit_preserving_full:
    .cfi_startproc
    .cfi_def_cfa_offset 40
    movq $$0, $REC(%r11)
{_GET_FLAGS}
    jmp ftrace_exit_preserving_all
"""

_EXIT = f"""
# Return of a call to a site with one native probe that has an exit handler.
#   r9 = node, r10 = list; stack inside: what is saved, return into the stub at 80(%rsp), return slot at 88(%rsp)
    .globl $name
    .p2align 6
$name:
    .cfi_startproc
    .cfi_def_cfa_offset 40
{images.push(_SAVED)}
    mov $ITEM_PROBE(%rax), %rdi
    testl $$$OFF_FLAGS, $PROBE_FLAGS(%rdi)
    jne 4f
    mov %r10, %r9
    mov %rax, %r10
$image
    mov $PARENT(%r9), %rdx
    mov $STUB(%r9), %rsi
    mov %rdx, $slot(%rsp)
    mov $RECORD_IP(%rsi), %rsi
$data
$regs
    call *$ITEM_EXIT(%r10)
$unimage
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
3:  movq $$0, $REC(%r11)
{_UNSAVED}
{_GET_FLAGS}
    ret
6:  # the pool is shared
    lock incq $PROBE_POOL(%rdi)
    jmp 5b
7:  # ... already: a signal came in between
    push %r9
    push %r11
    mov %rdi, %rsi
    mov %r11, %rdi
    call pool_donate
    pop %r11
    pop %r9
    jmp 5b
8:  # a signal's handler has jumped past calls that it hooked
    mov %r11, %rdi
    mov %r9, %rsi
    call node_leave
    mov %fs:$TASK, %r11
    jmp 3b
4:
{_UNSAVED}
    jmp ftrace_exit_preserving_full
"""
_PLAIN_EXIT = {"image": "", "regs": "", "unimage": "", "slot": "88"}
_WITH_RESULTS = {
    "image": "    mov 72(%rsp), %rax\n" + images.KEEP_RESULTS,
    "regs": images.EXIT_SP_IP.replace("176(%rsp)", "264(%rsp)"),
    "unimage": images.GET_RESULTS + "\n    mov %rax, 72(%rsp)\n    mov %rdx, 24(%rsp)\n    mov %rcx, 16(%rsp)",
    "slot": "256",
}
_NO_DATA = "    xor %r8d, %r8d"
_INLINE_DATA = "    lea $INLINE_DATA(%r9), %r8"


def _lowered(saving: dict[str, str]) -> dict[str, str]:
    """The blocks of an entry, where the return slot is further up, and the stub is named by the detour."""
    slot = int(saving["slot"])
    stub = saving["stub"] + "\n    mov $STUB_OF_FAST(%rsi), %rsi"
    regs = saving["regs"].replace(f"{slot}(%rsp)", f"{slot + KEPT}(%rsp)")
    return {**saving, "stub": stub, "regs": regs, "slot": str(slot + KEPT), "complete": "ftrace_preserving_full"}


def preserving_trampolines() -> Iterator[str]:
    """All of them."""
    yield ENTRY_PRESERVING
    yield EXIT_FAST_PRESERVING
    for size, data in (("", _NO_DATA), ("_data", _INLINE_DATA)):
        yield with_blocks(_EXIT, {"name": f"preserving_exit_fast{size}", **_PLAIN_EXIT, "data": data})
        yield with_blocks(_EXIT, {"name": f"preserving_exit_results{size}", **_WITH_RESULTS, "data": data})
    for given, saving in (("", PLAIN_ENTRY), ("_args", WITH_ARGUMENTS), ("_sp", WITH_SP)):
        yield with_blocks(
            ENTRY_FAST, {"name": f"preserving_entry_only{given}", "call": saving["only"], **_lowered(saving)}
        )
        yield from _with_return(f"preserving_both{given}", saving["both"], _lowered(saving))
    yield from _with_return("preserving_exit_only", NO_ENTRY, _lowered(PLAIN_ENTRY))


def _with_return(name: str, call: str, saving: dict[str, str]) -> Iterator[str]:
    for size, data in (("", NO_DATA), ("_word", ONE_WORD), ("_data", INLINE_DATA)):
        yield with_blocks(BOTH_FAST, {"name": name + size, "data": data, "call": call, "cancelled": "", **saving})
