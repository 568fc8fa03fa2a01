"""System calls that block signals, without SIGTRAP: routines as assembly text, and the islands that call them.

A C library makes a system call by `mov $number, %eax; syscall`, with perhaps a few instructions between them. A jump in the
place of the first leads to an *island*, which calls the routine of that number and continues after the last. A system call
changes rax, rcx and r11 only, and so do these.

`signal_mask_words` are ftrace.hit.signal_masks.MaskWords. The word of a thread at %fs + `offset` says what the program has
asked for there: BLOCKED if it has blocked SIGTRAP, with PENDING if one has been sent since. Its other bits are
`trap_blocked_epoch`, or it says nothing (sandbox.threads.signals).

An island has 128 bytes:

      0  lea  -128(%rsp),%rsp          the red zone
      5  movabs $routine,%rax
     15  call *%rax
     17  lea  128(%rsp),%rsp
     25  jmp  *56(island)
     32  the instruction that the jump replaces, and a jump after it
     56  .quad the address after the system call
     64  if there are instructions between the two: their copies, and a jump to the beginning

That of clone3, which continues on another stack in the child, makes the system call itself, from byte 64 on. Its routine is for
a child that begins without handlers (CLONE_CLEAR_SIGHAND), as those of glibc 2.38's posix_spawn do: it brings SIGTRAP's back.

glibc 2.41 makes system calls at which a thread may be cancelled by one function: push $number; call. The call is replaced. Its
island, from byte 64 on, has the routine make the call, with a copy of a mask for the wait, and continues after it. Between
a wait's beginning and its system call SIGTRAP may be blocked in earnest: a breakpoint in that function would end the process.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ftrace.hit.x86_64.frames import (
    AND,
    DEF_CFA,
    GE,
    IS_VALUE,
    LT,
    MUL,
    PLUS,
    RIP,
    RSP,
    const1s,
    const1u,
    field,
    op,
    register,
    rule,
)
from ftrace.hit.x86_64.frames import section as described
from ftrace.hit.x86_64.signal_actions import BLOCKED, PREFIX, SIGACTION
from ftrace.hit.x86_64.signal_waits import EPOLL_PWAIT, EPOLL_PWAIT2, PPOLL, PSELECT6, SIGNAL_WAITS, SIGSUSPEND, WAITS
from sandbox.x86_64.encoding import displacement, jump
from sandbox.x86_64.instruction import Flow, Instruction, decode
from sandbox.x86_64.relocate import expand
from sandbox.x86_64.syscalls import (
    SYS_CLONE3,
    SYS_GETPID,
    SYS_GETTID,
    SYS_RT_SIGACTION,
    SYS_RT_SIGPROCMASK,
    SYS_RT_SIGTIMEDWAIT,
    SYS_TGKILL,
)

ISLAND = 128
ORIGINAL, _AFTER, _BETWEEN = 32, 56, 64
_LOWERED, _RAISED = 5, 25
_RED_ZONE = 128
_MOV, _CALL, _SYSCALL = 5, 5, b"\x0f\x05"
_APART = 20
"""The most bytes between the two instructions."""
PENDING = 1

NUMBERS = frozenset({SYS_RT_SIGACTION, SYS_RT_SIGPROCMASK, SYS_CLONE3, *WAITS})
_CANCELLABLE = {
    SYS_RT_SIGTIMEDWAIT: "rdi", SIGSUSPEND: "rdi", PPOLL: "rcx", EPOLL_PWAIT: "r8", EPOLL_PWAIT2: "r8", PSELECT6: "r9",
}  # fmt: skip
"""The waits, and the register with the mask's address where a function makes them."""


def _with_number(opcode: bytes, numbers: Iterable[int]) -> re.Pattern[bytes]:
    return re.compile(
        opcode + b"(" + b"|".join(re.escape(each.to_bytes(4, "little")) for each in sorted(numbers)) + b")"
    )


_CALLS, _PUSHES = _with_number(b"\xb8", NUMBERS), _with_number(b"\x68", _CANCELLABLE)


class Call(NamedTuple):
    """A system call: the address of `mov $number, %eax`, and the instructions between that and `syscall`.

    Or that of a call of the function that makes it, which is `target`.
    """

    address: int
    number: int
    between: tuple[Instruction, ...] = ()
    target: int = 0

    @property
    def end(self) -> int:
        """The address after it."""
        if self.target:
            return self.address + _CALL
        return (self.between[-1].end if self.between else self.address + _MOV) + len(_SYSCALL)


def calls_in(code: bytes, start: int) -> Iterator[Call]:
    """The system calls in the code at `start` that have a routine."""
    for found in _CALLS.finditer(code):
        if code.find(_SYSCALL, found.end(), found.end() + _APART + len(_SYSCALL)) >= 0:
            number = int.from_bytes(found[1], "little")
            between = _between(code[found.end() : found.end() + _APART + 15], start + found.end())
            if between is not None and not (between and number == SYS_CLONE3):
                yield Call(start + found.start(), number, between)
    yield from _cancellable(code, start)


def _cancellable(code: bytes, start: int) -> Iterator[Call]:
    """Calls of the function that makes system calls of a number on the stack: it is one that most of the waits call."""
    calls = []
    for found in _PUSHES.finditer(code):
        between = _between(code[found.end() : found.end() + _APART + 15], start + found.end(), b"\xe8")
        if between is not None:
            at = between[-1].end if between else start + found.end()
            offset = int.from_bytes(code[at - start + 1 : at - start + _CALL], "little", signed=True)
            calls.append(Call(at, int.from_bytes(found[1], "little"), target=at + _CALL + offset))
    numbers = {each.target: {other.number for other in calls if other.target == each.target} for each in calls}
    yield from (each for each in calls if len(numbers[each.target]) >= len(_CANCELLABLE) / 2)


def _between(code: bytes, start: int, then: bytes = _SYSCALL) -> tuple[Instruction, ...] | None:
    """The instructions before the next system call, or what begins with `then`; None if they are none that continue with it."""
    between: list[Instruction] = []
    at = 0
    while at <= _APART:
        if code.startswith(then, at):
            return tuple(between)
        try:
            between.append(decode(code[at : at + 15], start + at))
        except ValueError:
            return None
        if between[-1].flow is not Flow.NEXT:
            return None
        at += between[-1].length
    return None


def routine(number: int, by_function: bool = False) -> str:
    """The symbol of a system call's routine; `by_function`: of one that a function makes."""
    return f"{PREFIX}{number}" + "_by_function" * by_function


def entry_of(call: Call, island: int) -> int:
    """Where the jump to an island leads."""
    return island + _BETWEEN if call.between or call.target or call.number == SYS_CLONE3 else island


def island(call: Call, where: int, target: int) -> bytes:
    """The island at `where` of a system call whose routine is at `target`.

    Raises ValueError or OverflowError if an instruction cannot be moved there.
    """
    code = bytes.fromhex("488d642480 48b8") + target.to_bytes(8, "little") + bytes.fromhex("ffd0 488da42480000000")
    code += b"\xff\x25" + (_AFTER - _RAISED - 6).to_bytes(4, "little")
    code = code.ljust(ORIGINAL, b"\xcc")
    if call.target:
        code += b"\xe8" + displacement(call.target, where + len(code) + _CALL)
    else:
        code += b"\xb8" + call.number.to_bytes(4, "little")
    code += jump(where + len(code), call.address + _MOV)
    code = code.ljust(_AFTER, b"\xcc") + call.end.to_bytes(8, "little")
    if call.target:
        code += _calling(call.target, target)
        return code.ljust(ISLAND, b"\xcc")
    if call.number == SYS_CLONE3:
        code += _cloning(target)
        return code.ljust(ISLAND, b"\xcc")
    for insn in call.between:
        code += expand(insn, where + len(code))
    return (code + jump(where + len(code), where)).ljust(ISLAND, b"\xcc")


def _calling(function: int, target: int) -> bytes:
    """movabs $function, %r11; movabs $target, %rax; call *%rax; jmp *after"""
    code = b"\x49\xbb" + function.to_bytes(8, "little") + b"\x48\xb8" + target.to_bytes(8, "little")
    code += bytes.fromhex("ffd0 ff25")
    return code + (_AFTER - _BETWEEN - len(code) - 4).to_bytes(4, "little", signed=True)


def _cloning(target: int) -> bytes:
    """clone3(args, size); in a child without handlers, call the routine. System calls leave the flags as they are.

    testb $1, 4(args); mov $435, %eax; syscall; jz; test %rax, %rax; jnz; movabs $target, %rax; call *%rax; jmp *after
    """
    code = bytes.fromhex("f6470401 b8") + SYS_CLONE3.to_bytes(4, "little") + _SYSCALL
    code += bytes.fromhex("7411 4885c0 750c 48b8") + target.to_bytes(8, "little") + bytes.fromhex("ffd0 ff25")
    return code + (_AFTER - _BETWEEN - len(code) - 4).to_bytes(4, "little", signed=True)


def section(start: int, size: int) -> bytes:
    """An .eh_frame section for islands at `start` (address, bytes), which continue the code that has made the system call."""
    offset = register(RIP) + const1u(ISLAND - 1) + op(AND)
    lowered = (
        offset + const1u(_LOWERED) + op(GE) + offset + const1u(_RAISED) + op(LT, AND) + const1u(_RED_ZONE) + op(MUL)
    )
    after = register(RIP) + const1s(-ISLAND) + op(AND) + field(_AFTER)
    rules = rule(DEF_CFA, register(RSP) + lowered + op(PLUS)) + rule(IS_VALUE, after, RIP)
    return described(start, size, rules, signal_frame=True)


_SIGPROCMASK = f"""
# rt_sigprocmask(how, set, old, size)
#   rdi = how   rsi = set   rdx = old; (%rsp) the kernel's set, 8(%rsp) the program's; rcx = offset
    .globl {routine(SYS_RT_SIGPROCMASK)}
    .p2align 4
{routine(SYS_RT_SIGPROCMASK)}:
    .cfi_startproc
    push %rsi
    sub $16, %rsp
    test %rsi, %rsi
    jz 1f
    mov (%rsi), %rax
    mov %rax, 8(%rsp)
    and ${~BLOCKED}, %rax
    mov %rax, (%rsp)
    mov %rsp, %rsi
1:
    mov ${SYS_RT_SIGPROCMASK}, %eax
    syscall
    test %rax, %rax
    jnz 9f
    movabs $signal_mask_words, %rcx
    mov 16(%rcx), %rcx
    movabs $trap_blocked_epoch, %rax
    mov (%rax), %rax
    mov %fs:(%rcx), %r11
    xor %rax, %r11
    cmp $0xff, %r11
    jbe 1f
    mov %rax, %fs:(%rcx)
1:
    xor %eax, %eax
    test %rdx, %rdx
    jz 2f
    mov %fs:(%rcx), %r11
    and ${BLOCKED}, %r11d
    or %r11, (%rdx)
2:
    test %rsi, %rsi
    jz 9f
    mov 8(%rsp), %r11
    and ${BLOCKED}, %r11d
    cmp $1, %edi
    je 3f
    ja 4f
    or %r11, %fs:(%rcx)
    jmp 9f
3:
    not %r11
    and %r11, %fs:(%rcx)
    jmp 5f
4:
    andq ${~BLOCKED}, %fs:(%rcx)
    or %r11, %fs:(%rcx)
5:
    movb %fs:(%rcx), %r11b
    test ${BLOCKED}, %r11b
    jnz 9f
    movabs $trap_pending, %rax
    cmpq $0, (%rax)
    je 6f
    xor %ecx, %ecx
    xchg %rcx, (%rax)
    or %rcx, %r11
    movabs $signal_mask_words, %rcx
    mov 16(%rcx), %rcx
6:
    xor %eax, %eax
    test ${PENDING}, %r11b
    jz 9f
    movb $0, %fs:(%rcx)
    push %rdi
    push %rdx
    mov ${SYS_GETTID}, %eax
    syscall
    mov %rax, %rsi
    mov ${SYS_GETPID}, %eax
    syscall
    mov %rax, %rdi
    mov $5, %edx
    mov ${SYS_TGKILL}, %eax
    syscall
    pop %rdx
    pop %rdi
    xor %eax, %eax
9:
    add $16, %rsp
    pop %rsi
    ret
"""

_CLONE3 = f"""
# in a child of clone3 that has no handlers, but breakpoints: give it that of SIGTRAP
    .globl {routine(SYS_CLONE3)}
    .p2align 4
{routine(SYS_CLONE3)}:
    .cfi_startproc
    push %rdi
    push %rsi
    push %rdx
    push %r10
    mov $5, %edi
    movabs $signal_mask_trap, %rsi
    xor %edx, %edx
    mov $8, %r10d
    cmpq $1, (%rsi)
    jbe 1f
    mov ${SYS_RT_SIGACTION}, %eax
    syscall
1:
    pop %r10
    pop %rdx
    pop %rsi
    pop %rdi
    xor %eax, %eax
    ret
"""

_BY_FUNCTION = """
# r11 = function; (%rsp) its number, 8(%rsp) the kernel's mask, 16(%rsp) for pselect6: the mask's address and its size,
#   32(%rsp) what has been changed
    .globl {name}
    .p2align 4
{name}:
    .cfi_startproc
    sub $40, %rsp
    mov 48(%rsp), %rax
    mov %rax, (%rsp)
    movq $0, 32(%rsp)
    test %{register}, %{register}
    jz 1f
{mask}
    push %r11
    push %rcx
    call {begins}
    pop %rcx
    pop %r11
    mov %rax, 32(%rsp)
1:
    call *%r11
    mov 32(%rsp), %r11
    call signal_wait_ends
    add $40, %rsp
    ret
"""
_OF_SIGTIMEDWAIT = """
    testb $16, (%{register})
    jz 1f
"""
_OF_WAIT = """
    mov (%{register}), %rax
    mov %rax, 8(%rsp)
    andq $-17, 8(%rsp)
    lea 8(%rsp), %{register}
"""
_OF_PSELECT = """
    mov (%{register}), %rax
    test %rax, %rax
    jz 1f
    mov (%rax), %rax
    mov %rax, 8(%rsp)
    andq $-17, 8(%rsp)
    lea 8(%rsp), %r10
    mov %r10, 16(%rsp)
    mov 8(%{register}), %r10
    mov %r10, 24(%rsp)
    lea 16(%rsp), %{register}
"""


def _by_function(number: int, register: str) -> str:
    mask = {PSELECT6: _OF_PSELECT, SYS_RT_SIGTIMEDWAIT: _OF_SIGTIMEDWAIT}.get(number, _OF_WAIT)
    begins = "signal_wait_awaits" if number == SYS_RT_SIGTIMEDWAIT else "signal_wait_opens"
    mask = mask.format(register=register).strip("\n")
    return _BY_FUNCTION.format(name=routine(number, True), register=register, mask=mask, begins=begins)


SIGNAL_MASKS = (
    _SIGPROCMASK
    + SIGACTION
    + _CLONE3
    + SIGNAL_WAITS
    + "".join(_by_function(number, register) for number, register in _CANCELLABLE.items())
)
"""The routines, as assembly text (AT&T)."""
