"""The trampolines between a stub and the handlers, as assembly text (AT&T) for LLVM to assemble.

Every entry trampoline is called by a stub (ftrace.hit.x86_64.stubs) with

    r11 = task   r10 = probe list   all argument registers and rax live
    stack        (%rsp) return into the stub    8(%rsp) the parent's return address

and returns with ZF=1 to have the stub call the body, ZF=0 to run the function unhooked. Every exit trampoline is jumped to with

    r11 = node   r10 = probe list   rax, rdx, rcx and the vector registers live: they hold the function's results
    stack        rsp = return slot + 8, 16-byte aligned

and returns to the parent. The trampolines of this module are those of the slow path, for every kind of list; native handlers have
faster ones (fast_trampolines, fast_returns, register_trampolines, multi_probe_trampolines).

The entry of the slow path expanded, without what saves and restores registers (a test compares it):

    registers  r11 = task, r10 = probe list; every register may be changed through the image
    stack      184(%rsp)  return slot: the parent's address       8(%rsp) at the entry
               176(%rsp)  return into the stub                     (%rsp) at the entry
               168(%rsp)  padding; then what dispatch_entry says
                 0 to 160  pt_regs

    ftrace_entry_full:
        KEEP_ENTRY                          <- push a pt_regs; its sp is the address of the return slot
        mov %r11, %rdi                      <- dispatch_entry(task, list, regs, return into the stub, 0)
        mov %r10, %rsi
        mov %rsp, %rdx
        mov 176(%rsp), %rcx
        xor %r8d, %r8d
        call dispatch_entry
    entry_finish:
        cmp $REDIRECTED, %eax
        je entry_redirect                   <- a handler has changed ip: return there instead of into the stub
        mov %eax, 168(%rsp)
        GET_ALL                             <- pop the registers and the padding
        add $32, %rsp
        cmpl $HOOKED, 8(%rsp)               <- ZF=1: the stub hooks the return
        lea 16(%rsp), %rsp                  <- which changes no flag
        ret
"""

from __future__ import annotations

from collections.abc import Mapping
from string import Template

from ftrace.hit.x86_64 import images
from ftrace.hit.x86_64.assembly_text import with_blocks
from ftrace.hit.x86_64.fast_returns import BEGIN_EXIT, fast_returns
from ftrace.hit.x86_64.fast_trampolines import NOTE_MADE, fast_trampolines
from ftrace.hit.x86_64.foreign_call import CALL_FOREIGN, vector_blocks
from ftrace.hit.x86_64.guard import GUARD, frame_rules
from ftrace.hit.x86_64.multi_probe_trampolines import ITEM_DATA, MULTI_PROBE, NOTHING, WALK
from ftrace.hit.x86_64.preserving_stub import EXIT_PRESERVING
from ftrace.hit.x86_64.preserving_trampolines import preserving_trampolines
from ftrace.hit.x86_64.register_trampolines import ENTRY_REGS, EXIT_REGS

_KEPT = ("rdi", "rsi", "rdx", "rcx", "r8", "r9", "r11")
_AT_RETURN = ("rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r11")


ENTRY_COMPLETE = """
# Entry with a full pt_regs, for every kind of list. regs->ip and sp are made here: sp is the address of the return slot.
#   stack inside: pt_regs (168 bytes), 8 bytes of padding, return into the stub, return slot
    .globl ftrace_entry_full
    .p2align 6
ftrace_entry_full:
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

# The exit trampoline of lists whose calls all return through the slow path.
    .globl ftrace_exit_from_list
    .p2align 4
ftrace_exit_from_list:
    .cfi_startproc
    .cfi_def_cfa_offset 0
    mov $STUB(%r11), %r10
    jmp ftrace_exit_full

# Return of a call whose node has another frame than the return slot, as it has on a coroutine's stack (ftrace.hit.made).
#   r11 = node; every other register but r10 is the function's
    .globl ftrace_exit_elsewhere
    .p2align 6
ftrace_exit_elsewhere:
    .cfi_startproc
    .cfi_def_cfa_offset 0
    lea -8-$OFF_STACK(%rsp), %r10
    cmp %r10, $FRAME(%r11)
    jne ftrace_exit_from_list
    mov %fs:$TASK, %r10
    cmpl $$0, $CONTEXT(%r10)
    jne ftrace_exit_from_list
$keep_at_return
    mov %r11, %rdi
    call was_made_last
    test %al, %al
$get_at_return
    je ftrace_exit_from_list
    lea -8(%rsp), %r10
    mov %r10, $FRAME(%r11)
    mov $PROBES(%r11), %r10
    jmp *$LIST_EXIT(%r10)

# Return with a full pt_regs: sp is the caller's after the return. r10 = the stub's return point.
#   stack inside: pt_regs (168 bytes), flags as they were, padding, the parent (where `ret` goes)
    .globl ftrace_exit_full
    .p2align 6
ftrace_exit_full:
    .cfi_startproc
    .cfi_def_cfa_offset 0
    lea -16(%rsp), %rsp
    pushfq
$return_image
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
# void ftrace_lost_return(stub, frame): the caller is not known. Report that and end the process.
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
    .ascii "fprobe: Return address not found: a hooked function returned on a stack that was not hooked.\\n"
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


_BLOCKS = {
    "keep": images.push(_KEPT),
    "get": images.pop(_KEPT),
    "keep_at_return": images.push(_AT_RETURN),
    "get_at_return": images.pop(_AT_RETURN),
    "note_made": NOTE_MADE,
    "image": images.KEEP_ENTRY,
    "regs_image": images.KEEP_ENTRY_REGS,
    "regs_return_image": images.whole(
        "lea 32(%rsp), %r10\n    push %r10", flags="push $$$USER_FLAGS", ip="push $PARENT(%r11)"
    ),
    "return_image": images.whole("lea 32(%rsp), %r11\n    push %r11"),
    "unimage": images.GET_ALL,
    "keep_arguments": images.KEEP_ARGUMENTS,
    "get_arguments": images.GET_ARGUMENTS,
    "entry_sp_ip": images.ENTRY_SP_IP,
    "begin_exit": BEGIN_EXIT,
    "keep_results": images.KEEP_RESULTS,
    "get_results": images.GET_RESULTS,
    "exit_sp_ip": images.EXIT_SP_IP,
    "item_data": ITEM_DATA,
    "keep_walk": images.push(WALK),
    "get_walk": images.pop(WALK),
}
"""Sequences that several texts have, by the names that these use: most save and restore registers."""


def _texts() -> list[str]:
    return [
        ENTRY_REGS,
        EXIT_REGS,
        MULTI_PROBE,
        NOTHING,
        ENTRY_COMPLETE,
        EXIT_PRESERVING,
        CALL_FOREIGN,
        LOST,
        EMPTY,
        GUARD,
        *fast_trampolines(),
        *fast_returns(),
        *preserving_trampolines(),
    ]


def assembly(constants: Mapping[str, int | str]) -> str:
    """All trampolines, without their call frame information (x86_64.assembly_text).

    `constants` gives the field offsets and sizes that the text names (see `ftrace.hit.assembly`).
    """
    blocks = {**vector_blocks(str(constants["VECTOR"])), **_BLOCKS}
    expanded = "\n".join(with_blocks(text, blocks) for text in _texts())
    return "    .text\n" + Template(expanded).substitute(constants, **frame_rules(constants))
