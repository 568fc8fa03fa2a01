"""System calls that wait for signals, or with a mask of their own, while SIGTRAP is kept out of masks: assembly text (AT&T).

Islands call these routines (ftrace.hit.x86_64.signal_masks). The kernel gets a copy of the mask without SIGTRAP. Where the
program has blocked SIGTRAP and the wait opens or awaits it, ftrace.hit.signal_waits does what the kernel would.
"""

from __future__ import annotations

from ftrace.hit.x86_64.signal_actions import PREFIX, calling
from sandbox.x86_64.syscalls import SYS_RT_SIGPENDING, SYS_RT_SIGTIMEDWAIT

SIGSUSPEND, PSELECT6, PPOLL, EPOLL_PWAIT, EPOLL_PWAIT2 = 130, 270, 271, 281, 441
_WITH_MASK = {SIGSUSPEND: "rdi", PPOLL: "r10", EPOLL_PWAIT: "r8", EPOLL_PWAIT2: "r8"}
"""System calls that have a mask while they wait, and the register with its address."""
WAITS = (SYS_RT_SIGPENDING, SYS_RT_SIGTIMEDWAIT, PSELECT6, *_WITH_MASK)

_WHAT_CHANGED = "mov %r11, %rdi"

_AROUND = f"""
# rax = the mask of a wait that begins, then what signal_wait_ends takes
    .globl signal_wait_opens
    .p2align 4
signal_wait_opens:
    .cfi_startproc
    test $16, %al
    jz 1f
    xor %eax, %eax
    ret
1:
{calling("begin_open_wait", _WHAT_CHANGED)}
    ret

# rax = what signal_wait_ends takes
    .globl signal_wait_awaits
    .p2align 4
signal_wait_awaits:
    .cfi_startproc
{calling("begin_trap_wait", _WHAT_CHANGED)}
    ret

# r11 = what the wait has changed; rax is kept
    .globl signal_wait_ends
    .p2align 4
signal_wait_ends:
    .cfi_startproc
    test %r11, %r11
    jz 1f
    push %rax
{calling("end_wait", _WHAT_CHANGED)}
    pop %rax
1:
    ret
"""

_SIGPENDING = f"""
# rt_sigpending(set, size)
#   rdi = set
    .globl {PREFIX}{SYS_RT_SIGPENDING}
    .p2align 4
{PREFIX}{SYS_RT_SIGPENDING}:
    .cfi_startproc
    mov ${SYS_RT_SIGPENDING}, %eax
    syscall
    test %rax, %rax
    jnz 1f
{calling("is_trap_pending", _WHAT_CHANGED)}
    or %rax, (%rdi)
    xor %eax, %eax
1:
    ret
"""

_SIGTIMEDWAIT = f"""
# rt_sigtimedwait(set, info, time, size)
#   rdi = set; (%rsp) what has been changed
    .globl {PREFIX}{SYS_RT_SIGTIMEDWAIT}
    .p2align 4
{PREFIX}{SYS_RT_SIGTIMEDWAIT}:
    .cfi_startproc
    push $0
    test %rdi, %rdi
    jz 1f
    testb $16, (%rdi)
    jz 1f
    call signal_wait_awaits
    mov %rax, (%rsp)
1:
    mov ${SYS_RT_SIGTIMEDWAIT}, %eax
    syscall
    pop %r11
    jmp signal_wait_ends
"""

_PSELECT = f"""
# pselect6(n, read, write, except, time, mask): mask leads to the mask's address and its size
#   r9 = mask; (%rsp) what r9 leads to for the kernel, 16(%rsp) the mask, 24(%rsp) what has been changed
    .globl {PREFIX}{PSELECT6}
    .p2align 4
{PREFIX}{PSELECT6}:
    .cfi_startproc
    push %r9
    sub $32, %rsp
    movq $0, 24(%rsp)
    test %r9, %r9
    jz 1f
    mov (%r9), %rax
    test %rax, %rax
    jz 1f
    mov (%rax), %rax
    mov %rax, 16(%rsp)
    andq $-17, 16(%rsp)
    lea 16(%rsp), %r11
    mov %r11, (%rsp)
    mov 8(%r9), %r11
    mov %r11, 8(%rsp)
    mov %rsp, %r9
    call signal_wait_opens
    mov %rax, 24(%rsp)
1:
    mov ${PSELECT6}, %eax
    syscall
    mov 24(%rsp), %r11
    call signal_wait_ends
    add $32, %rsp
    pop %r9
    ret
"""

_WAIT = """
# a system call with the address of a mask in {register}; (%rsp) the kernel's mask, 8(%rsp) what has been changed
    .globl {name}
    .p2align 4
{name}:
    .cfi_startproc
    push %{register}
    sub $16, %rsp
    movq $0, 8(%rsp)
    test %{register}, %{register}
    jz 1f
    mov (%{register}), %rax
    mov %rax, (%rsp)
    andq $-17, (%rsp)
    mov %rsp, %{register}
    call signal_wait_opens
    mov %rax, 8(%rsp)
1:
    mov ${number}, %eax
    syscall
    mov 8(%rsp), %r11
    call signal_wait_ends
    add $16, %rsp
    pop %{register}
    ret
"""

SIGNAL_WAITS = (
    _AROUND
    + _SIGPENDING
    + _SIGTIMEDWAIT
    + _PSELECT
    + "".join(
        _WAIT.format(number=number, register=name, name=f"{PREFIX}{number}") for number, name in _WITH_MASK.items()
    )
)
