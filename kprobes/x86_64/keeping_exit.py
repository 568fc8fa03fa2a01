"""The way back of a hooked call in code where no register is free (kprobes.x86_64.return_stub), as assembly text (AT&T)."""

from __future__ import annotations

from collections.abc import Mapping
from string import Template

from ftrace.x86_64.callframes import with_call_frames
from ftrace.x86_64.images import PUSH_ALL
from ftrace.x86_64.stubs import RETURN_POINT
from kprobes.x86_64.interrupted import REGISTERS
from kprobes.x86_64.optimized_detour import RESTORE_FLAGS
from kprobes.x86_64.return_stub import EXIT_KEEPING

_EXIT = """
# Called by a return stub. Every register and flag is live; the stub's `ret` takes the address that is left in the return slot.
# Vector registers are kept by whoever calls something that touches them.
#   stack inside: pt_regs (168 bytes), return into the stub at 168(%rsp), return slot at 176(%rsp)
#   rbx = the stack pointer, over the call
    .globl kprobe_exit_keeping_all
    .type kprobe_exit_keeping_all,@function
    .p2align 6
kprobe_exit_keeping_all:
    .cfi_startproc
    push $$$USER_SS
    push %rax
    pushfq
    push $$$USER_CS
    push $$0
    push $$-1
$push_all
    cld
    lea 184(%rsp), %rax
    mov %rax, $REGS_SP(%rsp)
    mov %rsp, %rdi
    lea 176(%rsp), %rsi
    mov 168(%rsp), %rdx
    lea $to_return_point(%rdx), %rdx
    mov %rsp, %rbx
    .cfi_rel_offset %rbx, $RBX
    .cfi_def_cfa_register %rbx
    and $$-16, %rsp
    call dispatch_exit
    mov %rax, 176(%rbx)
    mov %rbx, %rsp
    .cfi_def_cfa %rsp, 176
    mov $REGS_FLAGS(%rsp), %rcx
$restore_flags
8:
    .cfi_def_cfa %rsp, 176
$restore
    .cfi_remember_state
    .cfi_same_value %rbx
    lea 168(%rsp), %rsp
    ret
    .cfi_restore_state
9:  # a flag is set that sahf does not: take the word as it is
    .cfi_def_cfa %rsp, 176
    push %rcx
    popfq
    jmp 8b
    .size kprobe_exit_keeping_all, .-kprobe_exit_keeping_all
"""


def assembly(constants: Mapping[str, int | str]) -> str:
    """The routine; `constants` gives what it names (kprobes.hit.assembly)."""
    restore = "\n".join(f"    mov {to}(%rsp), %{register}" for register, to in REGISTERS.items())
    text = Template(_EXIT).substitute(
        constants,
        push_all=PUSH_ALL,
        restore=restore,
        restore_flags=RESTORE_FLAGS,
        to_return_point=RETURN_POINT - EXIT_KEEPING,
        RBX=REGISTERS["rbx"],
    )
    return "    .text\n" + with_call_frames(text)
