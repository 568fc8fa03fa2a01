"""The handlers of the probe that stands for a kretprobe in a fast return stub, as assembly text (AT&T)."""

from __future__ import annotations

from collections.abc import Mapping
from string import Template

from ftrace.x86_64.callframes import with_call_frames

_HANDLERS = """
# i32 fast_return_entry(probe, ip, ret_ip, regs, data), called by ftrace_both, or by the complete path as a C function.
#   rdi = probe, r8 = data (64 bytes behind the node, which is the instance), or 0 without a node: then nobody is called
#   r11 = task, rdi = the Kretprobe, rax = its handler, which keeps every register but rax and r11
    .globl fast_return_entry
    .type fast_return_entry,@function
    .p2align 5
fast_return_entry:
    mov %fs:$TASK, %r11
    mov $ACTION(%rdi), %rdi
    test %r8, %r8
    je 8f
    cmpq $$0, $KPROBE(%r11)
    jne 9f
    mov $TID(%r11), %eax
    mov %rdi, $RP-$DATA(%r8)
    mov %rax, $OWNER-$DATA(%r8)
    mov $ENTRY(%rdi), %rax
    test %rax, %rax
    je 8f
    mov $CHILD(%rdi), %rsi
    mov %rsi, $KPROBE(%r11)
    movl $$$ACTIVE, $STATUS(%r11)
    lea -$DATA(%r8), %rdi
    sub $$8, %rsp
    call *%rax
    add $$8, %rsp
    mov %fs:$TASK, %r11
    movl $$0, $STATUS(%r11)
    movq $$0, $KPROBE(%r11)
    ret
8:  xor %eax, %eax
    ret
9:  mov $CHILD(%rdi), %rax
    lock incq $NMISSED(%rax)
    mov $$1, %eax
    ret
    .size fast_return_entry, .-fast_return_entry

# void fast_return_exit(probe, ip, ret_ip, regs, data), called by ftrace_exit_fast: every register but r11 is kept.
    .globl fast_return_exit
    .type fast_return_exit,@function
    .p2align 5
fast_return_exit:
    push %rdi
    push %rax
    sub $$8, %rsp
    mov $ACTION(%rdi), %rdi
    cmpq $$0, $HANDLER(%rdi)
    je 8f
    mov %fs:$TASK, %r11
    mov $CHILD(%rdi), %rax
    mov %rax, $KPROBE(%r11)
    movl $$$ACTIVE, $STATUS(%r11)
    mov $HANDLER(%rdi), %rax
    lea -$DATA(%r8), %rdi
    call *%rax
    mov %fs:$TASK, %r11
    movl $$0, $STATUS(%r11)
    movq $$0, $KPROBE(%r11)
8:  add $$8, %rsp
    pop %rax
    pop %rdi
    ret
    .size fast_return_exit, .-fast_return_exit
"""


def assembly(constants: Mapping[str, int]) -> str:
    """Both; `constants` gives what they name (kprobes.fast_returns)."""
    return "    .text\n" + with_call_frames(Template(_HANDLERS).substitute(constants))
