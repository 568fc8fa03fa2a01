"""The trampolines between a stub and the handlers, as assembly text (AT&T) for LLVM to assemble.

Every entry trampoline is called by a stub (ftrace.x86_64.stubs) with

    r11 = task   r10 = probe list   all argument registers and rax live
    stack        (%rsp) return into the stub    8(%rsp) the parent's return address

and returns with ZF=1 to have the stub call the body, ZF=0 to run the function unhooked. Every exit trampoline is jumped to with

    r11 = node   r10 = probe list   rax, rdx, rcx and the vector registers live: they hold the function's results
    stack        rsp = return slot + 8, 16-byte aligned

and returns to the parent. The *fast* trampolines serve a site with one probe whose handlers are native functions of this
project's own making: they touch no vector register, and keep every general register but r11 and rax (LLVM's preserve_most).
Those that look at registers find the ones they use in a pt_regs (ftrace.x86_64.images). What is not plain (no credit, a dead node below, the shadow stack full) leaves them for
the *complete* ones before anything has been changed; a probe with a flag set gets the complete ones in its list.
Several such probes have trampolines of their own (ftrace.x86_64.several_trampolines).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import product
from string import Template

from ftrace.x86_64 import images
from ftrace.x86_64.foreign_call import CALL_FOREIGN, moved_vectors
from ftrace.x86_64.guard import GUARD, frame_rules
from ftrace.x86_64.register_trampolines import ENTRY_REGS, EXIT_REGS
from ftrace.x86_64.several_trampolines import ITEM_DATA, NOTHING, SEVERAL, WALK

PT_REGS_WORDS = 21
_KEPT = ("rdi", "rsi", "rdx", "rcx", "r8", "r9", "r11")


ENTRY_FAST = """
# A site with one native probe: the entry handler only.
#   r10 = what the function finds in rax, once the handler's address is at hand
#   stack inside: what is saved, return into the stub at $back(%rsp), return slot
    .globl $name
    .p2align 6
$name:
    .cfi_startproc
    mov %r10d, $LIST(%r11)
$save
    mov $ITEM_COUNTERS(%r10), %edi
    mov $back(%rsp), %rsi
    mov $slot(%rsp), %rdx
    incq $TALLY(%r11,%rdi)
    mov $ITEM_PROBE(%r10), %rdi
    mov $RECORD_IP(%rsi), %rsi
$regs
    mov $ITEM_ENTRY(%r10), %r11
    xor %r8d, %r8d
    mov %rax, %r10
    call *%r11
    mov %r10, %rax
    mov %fs:$TASK, %r11
$restore
    movq $$0, $REC(%r11)
    test %rsp, %rsp
    ret
"""

BOTH_FAST = """
# A site with one native probe that has an exit handler. What can decline does so first; then the node is reserved (the
# new top stored) before it is filled.
#   stack inside: what is saved, return into the stub at $back(%rsp), return slot
#   rdi = address of the return slot, then the probe, r8 = the new node; then the handler's arguments
#   r10 = what the function finds in rax, once the handler's address is at hand
    .globl $name
    .p2align 6
$name:
    .cfi_startproc
    mov %r10d, $LIST(%r11)
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
    mov $ITEM_COUNTERS(%r10), %edx
    mov $$$HIT_WITH_CREDIT, %r8
    add %r8, $TALLY(%r11,%rdx)
    js 7f
    cmp %rsi, $TOP(%r11)
    jne 7f
    lea $NODE(%rsi), %r8
    mov %r8, $TOP(%r11)
    lea $slot(%rsp), %rdx
    mov $back(%rsp), %rsi
    mov %rdx, $FRAME(%r8)
    mov $slot(%rsp), %rdx
    mov %r10, $PROBES(%r8)
    mov %rsi, $STUB(%r8)
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
6:  # cancelled: give the node back
    push %rcx
    push %r9
    push %r10
    push %r10
    mov %fs:$TASK, %rdi
    lea $slot+32(%rsp), %rsi
    call ftrace_cancel
    pop %rax
    pop %rax
    pop %r9
    pop %rcx
$restore
    test %rsp, %rsp
    ret
7:  sub %r8, $TALLY(%r11,%rdx)
8:
$restore
    jmp ftrace_entry_complete
"""

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

CALL_ENTRY = """
    mov $ITEM_ENTRY(%r10), %r11
    mov %rax, %r10
    call *%r11
    mov %fs:$TASK, %r11
    test %eax, %eax
    mov %r10, %rax
    jne 6f"""
NO_ENTRY = """
    mov %fs:$TASK, %r11
    cmp %eax, %eax"""

EXIT_FAST = """
# Return of a call to a site with one native probe that has an exit handler. The list was read before this task is marked
# as inside, so the probe is asked afterwards whether it has been unregistered meanwhile: then nobody waits for us.
#   r11 = node (kept in r9), r10 = probe list; rax, rdx, rcx = the function's results
#   stack inside: what is saved, then the parent in the return slot, where `ret` and unwinders find it
    .globl $name
    .p2align 6
$name:
    .cfi_startproc
    .cfi_def_cfa_offset 0
    lea -8(%rsp), %rsi
    cmp %rsi, $FRAME(%r11)
    jne ftrace_exit_from_list
    mov %fs:$TASK, %rdi
    cmpl $$0, $REC(%rdi)
    jne ftrace_exit_from_list
    movl $$$FAST, $REC(%rdi)
    mov %r10d, $LIST(%rdi)
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
    call *$ITEM_EXIT(%r10)
    mov %fs:$TASK, %r11
    testl $$$POOL_FLAGS, $PROBE_FLAGS(%rdi)
    jne 6f
    mov $ITEM_COUNTERS(%r10), %esi
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
7:  # ... by now: a signal came in between
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

EXIT_NO_DATA = """
    xor %r8d, %r8d"""
EXIT_INLINE_DATA = """
    lea $INLINE_DATA(%r11), %r8"""

ENTRY_COMPLETE = """
# Entry with a full pt_regs, for every kind of list. regs->ip and sp are made here: sp is the address of the return slot.
#   stack inside: pt_regs (168 bytes), 8 bytes of padding, return into the stub, return slot
    .globl ftrace_entry_complete
    .p2align 6
ftrace_entry_complete:
    .cfi_startproc
$image
    mov %r11, %rdi
    mov %r10, %rsi
    mov %rsp, %rdx
    mov 176(%rsp), %rcx
    xor %r8d, %r8d
    call dispatch_entry
entry_finish:
    cmp $$$REDIRECTED, %eax
    je entry_redirect
    mov %eax, 168(%rsp)
$unimage
    add $$32, %rsp
    cmpl $$$HOOKED, 8(%rsp)
    lea 16(%rsp), %rsp
    ret
entry_redirect:
    mov $REGS_IP(%rsp), %rax
    mov %rax, 176(%rsp)
$unimage
    add $$48, %rsp
    ret

# A thread without a task, or one in tracing code already: called from the end of the stub, returns to its middle.
    .globl ftrace_entry_slow
    .p2align 4
ftrace_entry_slow:
    .cfi_startproc
    subq $$$SLOW_TO_RETURN, (%rsp)
$image
    mov %rsp, %rdi
    mov 176(%rsp), %rsi
    call dispatch_slow
    jmp entry_finish

# What a list names as its exit trampoline when its calls all return through the complete one.
    .globl ftrace_exit_from_list
    .p2align 4
ftrace_exit_from_list:
    .cfi_startproc
    .cfi_def_cfa_offset 0
    mov $STUB(%r11), %r10
    jmp ftrace_exit_complete

# Return with a full pt_regs: sp is the caller's after the return. r10 = the stub's return point.
#   stack inside: pt_regs (168 bytes), flags as they were, padding, the parent (where `ret` goes)
    .globl ftrace_exit_complete
    .p2align 6
ftrace_exit_complete:
    .cfi_startproc
    .cfi_def_cfa_offset 0
    lea -16(%rsp), %rsp
    pushfq
    push $$$USER_SS
    lea 32(%rsp), %r11
    push %r11
    pushfq
    push $$$USER_CS
    push $$0
    push $$-1
$push_image
    cld
    mov %rsp, %rdi
    lea 184(%rsp), %rsi
    mov %r10, %rdx
    call dispatch_exit
    mov %rax, 184(%rsp)
$unimage
    mov 16(%rsp), %r11
    cmp %r11, 40(%rsp)
    jne exit_flags
    add $$56, %rsp
    ret
exit_flags:
    push %r11
    popfq
    lea 56(%rsp), %rsp
    ret
"""

LOST = """
# void ftrace_lost_return(stub, frame): nobody knows where this call came from. Say so and die on the spot.
    .globl ftrace_lost_return
ftrace_lost_return:
    .cfi_startproc
    mov $$1, %eax
    mov $$2, %edi
    lea lost_message(%rip), %rsi
    mov $$lost_message_end - lost_message, %edx
    syscall
    ud2
lost_message:
    .ascii "fprobe: Return address not found: a hooked function returned on a stack that nobody hooked.\\n"
lost_message_end:
"""

EMPTY = """
# A site whose probes have all gone while a thread was on its way here.
    .globl ftrace_entry_none
    .p2align 4
ftrace_entry_none:
    .cfi_startproc
    movq $$0, $REC(%r11)
    test %rsp, %rsp
    ret
"""


def assembly(constants: Mapping[str, int | str]) -> str:
    """All trampolines, without their call frame information (x86_64.callframes).

    `constants` gives the field offsets and sizes that the text names (see `ftrace.hit.assembly`).
    """
    blocks = {
        "keep_vectors": moved_vectors(str(constants["VECTOR"]), keep=True),
        "get_vectors": moved_vectors(str(constants["VECTOR"]), keep=False),
        "keep": images.push(_KEPT),
        "get": images.pop(_KEPT),
        "image": images.KEEP_ENTRY,
        "regs_image": images.KEEP_ENTRY_REGS,
        "push_image": images.PUSH_ALL,
        "unimage": images.GET_ALL,
        "keep_arguments": images.KEEP_ARGUMENTS,
        "get_arguments": images.GET_ARGUMENTS,
        "entry_sp_ip": images.ENTRY_SP_IP,
        "keep_results": images.KEEP_RESULTS,
        "get_results": images.GET_RESULTS,
        "exit_sp_ip": images.EXIT_SP_IP,
        "item_data": ITEM_DATA,
        "keep_walk": images.push(WALK),
        "get_walk": images.pop(WALK),
    }
    texts = [ENTRY_REGS, EXIT_REGS, SEVERAL, NOTHING, ENTRY_COMPLETE, CALL_FOREIGN, LOST, EMPTY, GUARD, *_fast()]
    expanded = "\n".join(_expand(text, blocks) for text in texts)
    return "    .text\n" + Template(expanded).substitute(constants, **frame_rules(constants))


# What the fast trampolines save: the registers that they use themselves, or an image for a handler that looks. What one that
# has sp puts into the return slot counts.
_SAVED = ("rdi", "rsi", "rdx", "r8")
_PLAIN_ENTRY = {
    "save": images.push(_SAVED),
    "restore": images.pop(_SAVED),
    "regs": "",
    "node": "",
    "parent": "",
    "back": "32",
    "slot": "40",
}
_WITH_ARGUMENTS = {
    "save": images.KEEP_ARGUMENTS,
    "restore": images.GET_ARGUMENTS,
    "regs": images.ENTRY_IP,
    "node": "",
    "parent": "",
    "back": "176",
    "slot": "184",
}
_WITH_SP = _WITH_ARGUMENTS | {
    "regs": images.ENTRY_SP_IP,
    "node": "    mov %r8, %r9",
    "parent": "    mov $slot(%rsp), %rdx\n    mov %rdx, $PARENT(%r9)",
}
_PLAIN_EXIT = {"save": images.push(("rdx",)), "restore": images.pop(("rdx",)), "regs": ""}
_WITH_RESULTS = {"save": images.KEEP_RESULTS, "restore": images.GET_RESULTS, "regs": images.EXIT_SP_IP}


def _fast() -> Iterator[str]:
    """The fast trampolines: with and without entry data, and with what their handlers look at."""
    for given, saving in (("", _PLAIN_ENTRY), ("_args", _WITH_ARGUMENTS), ("_sp", _WITH_SP)):
        yield _expand(ENTRY_FAST, {"name": f"ftrace_entry_only{given}", **saving})
    entries = (
        ("ftrace_both", CALL_ENTRY, _PLAIN_ENTRY),
        ("ftrace_both_args", CALL_ENTRY, _WITH_ARGUMENTS),
        ("ftrace_both_sp", CALL_ENTRY, _WITH_SP),
        ("ftrace_exit_only", NO_ENTRY, _PLAIN_ENTRY),
    )
    for (name, call, saving), (size, data) in product(
        entries, (("", NO_DATA), ("_word", ONE_WORD), ("_data", INLINE_DATA))
    ):
        yield _expand(BOTH_FAST, {"name": name + size, "data": data, "call": call, **saving})
    exits = (("ftrace_exit_fast", _PLAIN_EXIT), ("ftrace_exit_results", _WITH_RESULTS))
    for (name, saving), (size, data) in product(exits, (("", EXIT_NO_DATA), ("_data", EXIT_INLINE_DATA))):
        yield _expand(EXIT_FAST, {"name": name + size, "data": data, **saving})


def _expand(text: str, blocks: Mapping[str, str]) -> str:
    """Put blocks in, leaving `$$` and the names of constants, which are capitals, for the last step."""
    for name, block in blocks.items():
        text = re.sub(rf"\${name}\b", block.replace("\\", r"\\"), text)
    return text
