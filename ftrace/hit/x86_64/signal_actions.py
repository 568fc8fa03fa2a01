"""The system call that sets a signal's action, while SIGTRAP and faults have ours: a routine as assembly text.

Islands call it (ftrace.hit.x86_64.signal_masks). An action's sa_mask goes to the kernel without SIGTRAP; the second of
`signal_mask_words` says which have it, a bit for each signal (ftrace.hit.signal_masks.MaskWords). The program's action of
SIGTRAP, or of a fault, is kept beside ours (`exchange_action`).
"""

from __future__ import annotations

from sandbox.threads.signals import SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP
from sandbox.x86_64.syscalls import SYS_GETPID, SYS_RT_SIGACTION

OURS = sum(1 << number for number in (SIGTRAP, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGSYS))
"""The signals that may have our handler, a bit for each number."""
BLOCKED = 16
"""The bit of SIGTRAP in a mask."""
PREFIX = "signal_mask_"
"""What the symbols of routines begin with, before the number of the system call."""
ROUTINE = f"{PREFIX}{SYS_RT_SIGACTION}"

_SAVED = ("rdi", "rsi", "rdx", "r8", "r9", "r10", "rbp")


def calling(function: str, arguments: str) -> str:
    """Call a native function, which may change what a system call changes. `arguments`: moves its arguments where they belong."""
    pushes = "\n".join(f"    push %{name}" for name in _SAVED)
    pops = "\n".join(f"    pop %{name}" for name in reversed(_SAVED))
    return (
        f"{pushes}\n    mov %rsp, %rbp\n    and $-16, %rsp\n    {arguments}\n"
        f"    call {function}\n    mov %rbp, %rsp\n{pops}"
    )


SIGACTION = f"""
# rt_sigaction(signal, action, old, size)
#   rdi = signal   rsi = action   rdx = old; (%rsp) the kernel's action, 32(%rsp) not 0: in a child that runs in our memory,
#   which keeps the handler of SIGTRAP until it executes; 40(%rsp) the program's sa_mask; rcx = scratch
    .globl {ROUTINE}
    .p2align 4
{ROUTINE}:
    .cfi_startproc
    push %rsi
    sub $48, %rsp
    mov ${SYS_GETPID}, %eax
    syscall
    movabs $signal_mask_words, %rcx
    sub (%rcx), %rax
    mov %rax, 32(%rsp)
    mov %edi, %edi
    cmp $31, %edi
    ja 0f
    mov ${OURS}, %ecx
    bt %edi, %ecx
    jc 5f
0:
    test %rsi, %rsi
    jz 2f
    mov (%rsi), %rax
    mov %rax, (%rsp)
    mov 8(%rsi), %rax
    mov %rax, 8(%rsp)
    mov 16(%rsi), %rax
    mov %rax, 16(%rsp)
    mov 24(%rsi), %rax
    mov %rax, 40(%rsp)
    and ${~BLOCKED}, %rax
    mov %rax, 24(%rsp)
    mov %rsp, %rsi
2:
    mov ${SYS_RT_SIGACTION}, %eax
    syscall
    test %rax, %rax
    jnz 9f
    cmpq $0, 32(%rsp)
    jne 9f
    movabs $signal_mask_words, %rcx
    lea -1(%rdi), %r11d
    test %rdx, %rdx
    jz 3f
    bt %r11, 8(%rcx)
    jnc 3f
    orq ${BLOCKED}, 24(%rdx)
3:
    test %rsi, %rsi
    jz 9f
    testb ${BLOCKED}, 40(%rsp)
    jz 4f
    lock btsq %r11, 8(%rcx)
    jmp 9f
4:
    lock btrq %r11, 8(%rcx)
9:
    add $48, %rsp
    pop %rsi
    ret
5:  # a signal whose handler is ours, and stays
    test %rax, %rax
    jz 6f
    cmp $5, %edi
    jne 0b
    xor %esi, %esi
    jmp 2b
6:
{calling("exchange_action", "")}
    test %rax, %rax
    jz 9b
    jmp 0b
"""
