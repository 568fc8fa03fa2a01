"""The fast trampolines of entries: a site with one probe, whose handlers are native functions, as assembly text (AT&T).

Such handlers touch no vector register, and preserve every general register but r11 and rax (LLVM's preserve_most). Handlers that
use argument or result registers get them in a pt_regs (ftrace.hit.x86_64.images). A hit that is not plain (in another context
than the normal one, without a credit, above a dead node, with a full shadow stack) takes the slow path before anything has been
changed; a probe with a flag set has the slow trampolines in its list. Registers and stack at entry and exit:
ftrace.hit.x86_64.trampolines; returns: ftrace.hit.x86_64.fast_returns.

One of them expanded to its first `ret`: handlers at both ends that use no registers, no entry data (a test compares it).

    registers  r11 = task, r10 = probe list; argument registers and rax are the program's
    stack      40(%rsp)  return slot: the parent's address       8(%rsp) at the entry
               32(%rsp)  return into the stub                     (%rsp) at the entry
                0 to 24  r8, rdx, rsi, rdi

    ftrace_both:
        mov %rsp, HIT_SP(%r11)              <- a hit above it that was left by a jump is noticed by this
        mov %r10d, LIST(%r11)               <- the list is in use from here on
        cmpl $0, CONTEXT(%r11)
        jne ftrace_entry_full               <- in a signal's handler: nothing has been changed
        push %rdi
        push %rsi
        push %rdx
        push %r8
        mov TOP(%r11), %rsi                 <- the newest node ...
        lea 40(%rsp), %rdi
        cmp %rdi, FRAME(%rsi)
        jbe 8f                              <- ... is of a call that was left: the slow path drops it
        lea NODE(%rsi), %r8
        cmp LIMIT(%r11), %r8
        ja 8f                               <- the shadow stack is full
        mov ITEM_PROBE(%r10), %rdi          <- rdi = the probe, the handler's first argument
        testl $POOL_FLAGS, PROBE_FLAGS(%rdi)
        jne 8f                              <- nodes are counted for all threads
        mov ITEM_COUNTERS(%r10), %rdx
        mov $HIT_WITH_CREDIT, %r8
        add %r8, TALLY(%r11,%rdx)           <- one hit more and one credit less, in one word of this thread
        js 7f                               <- no credit left
        cmp %rsi, TOP(%r11)
        jne 7f                              <- a signal's handler has left a node between
        lea NODE(%rsi), %r8
        mov %r8, TOP(%r11)                  <- reserved before it is filled: signals nest above it
        mov %r10, PROBES(%r8)
        lea 40(%rsp), %rdx
        mov 32(%rsp), %rsi
        mov %rdx, FRAME(%r8)                <- the address of the return slot
        movq $ON_STACK, MADE(%r8)
        mov %rsi, STUB(%r8)                 <- where the body will return to: the stub, by its return point
        sub STACK(%r11), %rdx
        cmp STACK_SIZE(%r11), %rdx
        jae 2f                              <- not on the thread's own stack, but on a coroutine's: note when
    1:  mov 40(%rsp), %rdx
        mov %rdx, PARENT(%r8)               <- rdx = the parent, the third argument
        mov RECORD_IP(%rsi), %rsi           <- rsi = the site, the second argument
        xor %r8d, %r8d                      <- no entry data
        mov %rax, %r10                      <- the handler keeps every register but rax and r11
        call *PROBE_ENTRY(%rdi)
        mov %fs:TASK, %r11
        test %eax, %eax                     <- ZF=1 is kept to the stub: hook
        mov %r10, %rax
        jne 6f                              <- the handler declines the return: give the node back, ZF=0
        pop %r8
        pop %rdx
        pop %rsi
        pop %rdi
        movq $0, REC(%r11)                  <- out of tracing code
        ret
"""

from __future__ import annotations

from collections.abc import Iterator

from ftrace.hit.x86_64 import images
from ftrace.hit.x86_64.assembly_text import with_blocks

ENTRY_EARLY = """
# A site with one native probe without an exit handler, whose entry may be dealt with before anything is saved (Early in
# ftrace.hit.records). The function keeps every register but r11 and rax.
#   r11 = task, until the call   r10 = probe list   rax = the probe, the function's address, its result
#   stack inside: address of the Early (the function's seventh argument), rax as the site has it, return into the stub, return
#   slot
    .globl $name
    .p2align 6
$name:
    .cfi_startproc
    mov %rsp, $HIT_SP(%r11)
    mov %r10d, $LIST(%r11)
    cmpl $$0, $CONTEXT(%r11)
    jne ftrace_entry_full
    push %rax
    mov $ITEM_PROBE(%r10), %rax
    push $PROBE_EARLY(%rax)
    mov (%rsp), %rax
    mov (%rax), %rax
    test %rax, %rax
    je 8f
    call *%rax
    mov %fs:$TASK, %r11
    test %eax, %eax
8:  lea 8(%rsp), %rsp
    pop %rax
    je $otherwise
    mov $ITEM_COUNTERS(%r10), %r10
    incq $TALLY(%r11,%r10)
    movq $$0, $REC(%r11)
    test %rsp, %rsp
    ret
"""

ENTRY_FAST = """
# A site with one native probe: the entry handler only.
#   r10 = probe list, then what the function finds in rax, unless that is saved
#   stack inside: what is saved, return into the stub at $back(%rsp), return slot
    .globl $name
    .p2align 6
$name:
    .cfi_startproc
    mov %rsp, $HIT_SP(%r11)
    mov %r10d, $LIST(%r11)
    cmpl $$0, $CONTEXT(%r11)
    jne $complete
$save
    mov $ITEM_COUNTERS(%r10), %rdi
$stub
    mov $slot(%rsp), %rdx
    incq $TALLY(%r11,%rdi)
    mov $ITEM_PROBE(%r10), %rdi
    mov $RECORD_IP(%rsi), %rsi
$regs
$call
    mov %fs:$TASK, %r11
$leave
    movq $$0, $REC(%r11)
    ret
"""

BOTH_FAST = """
# A site with one native probe that has an exit handler. All checks that can fail come first. The node is then reserved
# (the new top stored) before it is filled, so that a signal sees a valid stack.
#   stack inside: what is saved, return into the stub at $back(%rsp), return slot
#   rdi = address of the return slot, then the probe, r8 = the new node; then the handler's arguments
#   r10 = probe list, then what the function finds in rax, unless that is saved
    .globl $name
    .p2align 6
$name:
    .cfi_startproc
    mov %rsp, $HIT_SP(%r11)
    mov %r10d, $LIST(%r11)
    cmpl $$0, $CONTEXT(%r11)
    jne $complete
$save
    mov $TOP(%r11), %rsi
    lea $slot(%rsp), %rdi
    cmp %rdi, $FRAME(%rsi)
    jbe 8f
    lea $NODE(%rsi), %r8
    cmp $LIMIT(%r11), %r8
    ja 8f
    mov $ITEM_PROBE(%r10), %rdi
    testl $$$POOL_FLAGS, $PROBE_FLAGS(%rdi)
    jne 8f
    mov $ITEM_COUNTERS(%r10), %rdx
    mov $$$HIT_WITH_CREDIT, %r8
    add %r8, $TALLY(%r11,%rdx)
    js 7f
    cmp %rsi, $TOP(%r11)
    jne 7f
    lea $NODE(%rsi), %r8
    mov %r8, $TOP(%r11)
    mov %r10, $PROBES(%r8)
    lea $slot(%rsp), %rdx
$stub
    mov %rdx, $FRAME(%r8)
    movq $$$ON_STACK, $MADE(%r8)
    mov %rsi, $STUB(%r8)
    sub $STACK(%r11), %rdx
    cmp $STACK_SIZE(%r11), %rdx
    jae 2f
1:  mov $slot(%rsp), %rdx
    mov %rdx, $PARENT(%r8)
    mov $RECORD_IP(%rsi), %rsi
$node
$data
$regs
$call
$parent
$restore
    movq $$0, $REC(%r11)
    ret
2:
$note_made
    jmp 1b
6:  # cancelled: give the node back; rdi, rsi, rdx, r8 are free, rax is back or saved
$cancelled
    testl $$$POOL_FLAGS, $PROBE_FLAGS(%rdi)
    jne 4f
    mov $TOP(%r11), %r8
    lea $slot(%rsp), %rdx
    cmp %rdx, $FRAME(%r8)
    jne 4f
    mov $PROBES(%r8), %rsi
    mov $ITEM_COUNTERS(%rsi), %rsi
    mov $$$CREDIT_UNIT, %rdx
    add %rdx, $TALLY(%r11,%rsi)
    testl $$$POOL_FLAGS, $PROBE_FLAGS(%rdi)
    jne 5f
3:  sub $$$NODE, %r8
    mov %r8, $TOP(%r11)
    movq $$0, $REC(%r11)
$restore
    test %rsp, %rsp
    ret
4:  # the pool is shared, or a signal's handler has jumped past calls that it hooked
    push %rax
    push %rcx
    push %r9
    push %r10
    mov %r11, %rdi
    lea $slot+32(%rsp), %rsi
    call ftrace_cancel
    pop %r10
    pop %r9
    pop %rcx
    pop %rax
$restore
    test %rsp, %rsp
    ret
5:  # the pool is shared already: a signal came in between
    push %rax
    push %rcx
    push %r8
    push %r9
    mov %rdi, %rsi
    mov %r11, %rdi
    call pool_donate
    pop %r9
    pop %r8
    pop %rcx
    pop %rax
    mov %fs:$TASK, %r11
    jmp 3b
7:  sub %r8, $TALLY(%r11,%rdx)
8:
$restore
    jmp $complete
"""

_LIVE = ("rax", "rcx", "rsi", "rdi", "r8", "r9", "r10", "r11")
NOTE_MADE = f"""    # The return slot is not on the thread's own stack: note when. r8 = node, r11 = task; uses rdx.
{images.push(_LIVE)}
    mov %r11, %rdi
    mov %r8, %rsi
    mov $FRAME(%r8), %rdx
    call note_made
{images.pop(_LIVE)}
    subq $$$OFF_STACK, $FRAME(%r8)"""

NO_DATA = """
    xor %r8d, %r8d"""

ONE_WORD = """
    lea $INLINE_DATA(%r8), %r8
    movq $$0, (%r8)"""

INLINE_DATA = """
    mov $LIST_WORDS(%r10), %r11d
    lea $INLINE_DATA(%r8), %r8
9:  movq $$0, -8(%r8,%r11,8)
    dec %r11d
    jne 9b"""

CALL_ONLY = """
    xor %r8d, %r8d
    mov %rax, %r10
    call *$PROBE_ENTRY(%rdi)
    mov %r10, %rax"""
CALL_ONLY_SAVED = """
    xor %r8d, %r8d
    call *$PROBE_ENTRY(%rdi)"""
CALL_LEAN_ONLY = """
    mov %r11, %rcx
    call *$PROBE_LEAN_ENTRY(%rdi)"""

CALL_ENTRY = """
    mov %rax, %r10
    call *$PROBE_ENTRY(%rdi)
    mov %fs:$TASK, %r11
    test %eax, %eax
    mov %r10, %rax
    jne 6f"""
CALL_ENTRY_SAVED = """
    call *$PROBE_ENTRY(%rdi)
    mov %fs:$TASK, %r11
    test %eax, %eax
    jne 6f"""
CALL_LEAN = """
    mov %r11, %rcx
    call *$PROBE_LEAN_ENTRY(%rdi)
    mov %fs:$TASK, %r11
    test %eax, %eax
    jne 6f"""
PROBE_OF_LEAN = """    mov (%rsp), %r10
    mov $ITEM_PROBE(%r10), %rdi"""
NO_ENTRY = """
    mov %fs:$TASK, %r11
    cmp %eax, %eax"""

# What the fast trampolines save: the registers that they use themselves, or an image for a handler that looks. What one that
# has sp puts into the return slot counts.
_SAVED = ("rdi", "rsi", "rdx", "r8")
_NOT_ZERO = "\n    test %rsp, %rsp"
"""The flags that tell the stub that the return is not hooked."""
PLAIN_ENTRY = {
    "stub": "    mov $back(%rsp), %rsi",
    "complete": "ftrace_entry_full",
    "save": images.push(_SAVED),
    "restore": images.pop(_SAVED),
    "leave": images.pop(_SAVED) + _NOT_ZERO,
    "only": CALL_ONLY,
    "both": CALL_ENTRY,
    "regs": "",
    "node": "",
    "parent": "",
    "back": "32",
    "slot": "40",
}
WITH_ARGUMENTS = {
    "stub": "    mov $back(%rsp), %rsi",
    "complete": "ftrace_entry_full",
    "save": images.KEEP_ARGUMENTS,
    "restore": images.GET_ARGUMENTS,
    "leave": images.GET_ARGUMENTS_NOT_ZERO,
    "only": CALL_ONLY_SAVED,
    "both": CALL_ENTRY_SAVED,
    "regs": images.ENTRY_IP,
    "node": "",
    "parent": "",
    "back": "176",
    "slot": "184",
}
WITH_SP = WITH_ARGUMENTS | {
    "regs": images.ENTRY_SP_IP,
    "node": "    mov %r8, %r9",
    "parent": "    mov $slot(%rsp), %rdx\n    mov %rdx, $PARENT(%r9)",
}
_DESTROYED = ("rdi", "rsi", "rdx", "rcx", "rax", "r8", "r9", "r10")
"""The registers that a function in the C calling convention may destroy, besides r11."""
LEAN_ENTRY = PLAIN_ENTRY | {
    "save": images.push(_DESTROYED),
    "restore": images.pop(_DESTROYED),
    "back": "64",
    "slot": "72",
}
LEAN_ONLY = PLAIN_ENTRY | {
    "save": images.push(_DESTROYED[:-1]),
    "leave": images.pop(_DESTROYED[:-1]) + _NOT_ZERO,
    "back": "56",
    "slot": "64",
}


def fast_trampolines() -> Iterator[str]:
    """The fast trampolines of entries: by the registers that their handlers use, with and without entry data."""
    for given, saving in (("", PLAIN_ENTRY), ("_args", WITH_ARGUMENTS), ("_sp", WITH_SP)):
        yield with_blocks(ENTRY_FAST, {"name": f"ftrace_entry_only{given}", "call": saving["only"], **saving})
        yield with_blocks(ENTRY_EARLY, {"name": f"ftrace_early_only{given}", "otherwise": f"ftrace_entry_only{given}"})
        yield from _with_return(f"ftrace_both{given}", saving["both"], saving)
    yield with_blocks(ENTRY_EARLY, {"name": "ftrace_early_regs", "otherwise": "ftrace_entry_regs"})
    yield from _with_return("ftrace_exit_only", NO_ENTRY, PLAIN_ENTRY)
    yield from _lean()


def _with_return(name: str, call: str, saving: dict[str, str]) -> Iterator[str]:
    for size, data in (("", NO_DATA), ("_word", ONE_WORD), ("_data", INLINE_DATA)):
        yield with_blocks(BOTH_FAST, {"name": name + size, "data": data, "call": call, "cancelled": "", **saving})


def _lean() -> Iterator[str]:
    """For handlers with lean forms: at the entry only, or at both ends with a word of data."""
    yield with_blocks(ENTRY_FAST, {"name": "ftrace_entry_lean", "call": CALL_LEAN_ONLY, **LEAN_ONLY})
    both = {"data": ONE_WORD, "call": CALL_LEAN, "cancelled": PROBE_OF_LEAN}
    yield with_blocks(BOTH_FAST, {"name": "ftrace_both_lean", **both, **LEAN_ENTRY})
