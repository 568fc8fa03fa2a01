"""The detour of breakpoints whose handlers run outside of the signal's frame, as assembly text (AT&T).

A slot (kprobes.x86_64.slot) leads to it through a word at the start of the slots' page.

Expanded to its first `ret` (a test compares it); the stack is described at the head of each part in `_DETOUR`:

    kprobe_detour:
        push (%rsp)                         <- room: the record goes down one word, its old word ...
        push (%rsp)
        push %rax
        mov 8(%rsp), %rax
        mov ADDRESS(%rax), %rax
        mov %rax, 24(%rsp)                  <- ... becomes the probed address, for unwinders
        pop %rax
        kprobe_detour_from_frame:
        push $USER_SS
        push $0                             <- sp: below
        pushfq
        push $USER_CS
        push $0                             <- ip: by the dispatcher, from the record
        push $-1
        push %rdi
        push %rsi
        push %rdx
        push %rcx
        push %rax
        push %r8
        push %r9
        push %r10
        push %r11
        push %rbx
        push %rbp
        push %r12
        push %r13
        push %r14
        push %r15
        cld
        mov %rsp, %rdi                      <- rdi = the pt_regs
        mov 176(%rsp), %rsi                 <- rsi = the record
        lea 320(%rsp), %rax
        mov %rax, REGS_SP(%rsp)             <- sp as it was at the probed instruction, above the red zone
        mov %rsp, %rbx
        and $-16, %rsp
        call kprobe_detour_hit              <- the handlers; then ip, sp, flags of the pt_regs say how to go on
        mov REGS_SP(%rbx), %rax             <- rax = newsp
        lea 320(%rbx), %rcx
        cmp %rcx, %rax
        jb 2f                               <- lower than it was: first move the pt_regs out of the way
        1:
        mov REGS_IP(%rbx), %rcx
        mov REGS_FLAGS(%rbx), %rdx
        mov REGS_BX(%rbx), %rsi
        mov %rcx, -136(%rax)                <- for `ret $128`
        mov %rdx, -144(%rax)                <- for `popfq`
        mov %rsi, -152(%rax)                <- for `pop %rbx`
        sub $152, %rax
        mov %rax, REGS_ORIG(%rbx)
        mov 0(%rbx), %r15
        mov 8(%rbx), %r14
        mov 16(%rbx), %r13
        mov 24(%rbx), %r12
        mov 32(%rbx), %rbp
        mov 48(%rbx), %r11
        mov 56(%rbx), %r10
        mov 64(%rbx), %r9
        mov 72(%rbx), %r8
        mov 80(%rbx), %rax
        mov 88(%rbx), %rcx
        mov 96(%rbx), %rdx
        mov 104(%rbx), %rsi
        mov 112(%rbx), %rdi
        mov REGS_ORIG(%rbx), %rsp           <- the last use of rbx as the pt_regs
        pop %rbx
        popfq
        ret $128                            <- to the target; takes off the red zone
"""

from __future__ import annotations

from collections.abc import Mapping
from string import Template

from ftrace.hit.x86_64.assembly_text import with_call_frames
from ftrace.hit.x86_64.images import whole
from kprobes.x86_64 import unwinding
from kprobes.x86_64.unwinding import REGISTERS

_DETOUR = """
# A hit, called from a slot instead of from the signal's frame. Every register and flag is the interrupted code's.
#   stack   sp-128: below the red zone; sp-136: the record, later the address that unwinders find
    .globl kprobe_detour
    .type kprobe_detour,@function
    .p2align 6
kprobe_detour:
$head_by_record
$ip_by_record
    push (%rsp)
    push (%rsp)
    push %rax
    .cfi_rel_offset %rax, 0
    mov 8(%rsp), %rax
    mov $ADDRESS(%rax), %rax
    mov %rax, 24(%rsp)
    .cfi_offset %rip, -136
    pop %rax
    .cfi_same_value %rax
    .size kprobe_detour, .-kprobe_detour

# The same with another address for unwinders, entered from a signal's frame (kprobes.hit.calling.into_detour).
#   stack   sp-136: that address; sp-144: the record; sp-152: unused; then a pt_regs is built, 168 bytes
#   rbx = the pt_regs; rax = the stack pointer to continue with; rcx, rdx, rsi, rdi: moves
# To continue anywhere with every register restored, the target is put at newsp-136, the flags at newsp-144 and rbx at newsp-152;
# at last the stack pointer moves there, and `ret $$128` takes the target off and steps over the red zone. A pt_regs in whose
# way these words would be (newsp is lower than it was) is moved down first.
    .globl kprobe_detour_from_frame
    .type kprobe_detour_from_frame,@function
kprobe_detour_from_frame:
$head_from_frame
    .cfi_offset %rip, -136
$push_image
$saved
    cld
    mov %rsp, %rdi
    mov 176(%rsp), %rsi
    lea 320(%rsp), %rax
    mov %rax, $REGS_SP(%rsp)
    mov %rsp, %rbx
    .cfi_def_cfa_register %rbx
    and $$-16, %rsp
    call kprobe_detour_hit
$by_regs
    mov $REGS_SP(%rbx), %rax
    lea 320(%rbx), %rcx
    cmp %rcx, %rax
    jb 2f
1:  mov $REGS_IP(%rbx), %rcx
    mov $REGS_FLAGS(%rbx), %rdx
    mov $REGS_BX(%rbx), %rsi
    mov %rcx, -136(%rax)
    mov %rdx, -144(%rax)
    mov %rsi, -152(%rax)
    sub $$152, %rax
    mov %rax, $REGS_ORIG(%rbx)
$get_image
    .cfi_remember_state
    mov $REGS_ORIG(%rbx), %rsp
    .cfi_def_cfa %rsp, 152
    .cfi_offset %rip, -136
    .cfi_offset %rbx, -152
$unsaved
    pop %rbx
    .cfi_same_value %rbx
    popfq
    ret $$128
    .cfi_restore_state
2:  lea -512(%rax), %rdi
    mov %rbx, %rsi
    mov %rdi, %rsp
    mov $$21, %ecx
    rep movsq
    mov %rsp, %rbx
    jmp 1b
    .size kprobe_detour_from_frame, .-kprobe_detour_from_frame
"""

_UNRECOVERABLE = """
# void kprobe_unrecoverable(): a probe was hit while a missed one was being stepped, and there is no place for a third.
    .globl kprobe_unrecoverable
    .type kprobe_unrecoverable,@function
kprobe_unrecoverable:
    mov $$1, %eax
    mov $$2, %edi
    lea unrecoverable_message(%rip), %rsi
    mov $$unrecoverable_message_end - unrecoverable_message, %edx
    syscall
    ud2
unrecoverable_message:
    .ascii "kprobes: Unrecoverable kprobe detected.\\n"
unrecoverable_message_end:
    .size kprobe_unrecoverable, .-kprobe_unrecoverable
"""


def assembly(constants: Mapping[str, int | str]) -> str:
    """The assembly text; `constants`: values of its names (kprobes.hit.assembly)."""
    text = Template(_DETOUR).substitute({**constants, **_blocks(constants)})
    return "    .text\n" + with_call_frames(text) + Template(_UNRECOVERABLE).substitute()


def _blocks(constants: Mapping[str, int | str]) -> dict[str, str]:
    return {
        "push_image": Template(whole("push $$0")).substitute(constants),
        "get_image": "\n".join(
            f"    mov {to}(%rbx), %{register}" for register, to in REGISTERS.items() if register != "rbx"
        ),
        "head_by_record": unwinding.head(136),
        "ip_by_record": unwinding.ip_by_record(136, int(constants["ADDRESS"])),
        "head_from_frame": unwinding.head(152),
        "saved": unwinding.saved(320),
        "by_regs": unwinding.by_regs(),
        "unsaved": unwinding.unsaved("rbx"),
    }
