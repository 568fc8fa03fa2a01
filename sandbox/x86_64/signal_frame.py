"""A signal's frame, as the kernel makes it on the stack: rt_sigreturn(2) restores registers and signal mask from it, at once.

It is written beforehand for a thread that makes system calls for its tracer, where its stack pointer then points. If the tracer
is killed meanwhile, the thread continues with `syscall; ret`: that returns to code which calls rt_sigreturn, and so to where the
thread was.
"""

from __future__ import annotations

import struct
from typing import Protocol

RESTORER = b"\x48\xc7\xc0\x0f\x00\x00\x00\x0f\x05"
"""mov $15,%rax; syscall: the C library's code after the return from a signal's handler."""
_GENERAL = ("r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rdi", "rsi", "rbp", "rbx", "rdx")
_FLAGS = 1 | 2 | 4
"""UC_FP_XSTATE, UC_SIGCONTEXT_SS and UC_STRICT_RESTORE_SS."""
_NO_STACK = struct.pack("<QiiQ", 0, 0x40, 0, 0)
"""An invalid alternative stack: the kernel leaves the thread's as it is."""
_FRAME = 312
_ALIGNMENT = 64
_MAGIC_1, _MAGIC_2 = 0x46505853, 0x46505845
_SOFTWARE_AT, _USED_AT = 464, 512
"""Offsets in the vector state of the part that describes it, and of the bits of the components that are in use."""
_TILES_AT, _TILES = 2752, 3 << 17
"""Offset and bits of the components of AMX, where there are any."""
_AGAIN, _AGAIN_LATER = (-512, -513, -514), -516
"""ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND: the kernel would make the call again. ERESTART_RESTARTBLOCK: with what is left of
its time, by restart_syscall, which fails with EINTR after rt_sigreturn."""
_RESTART_SYSCALL = 219
_SYSCALL_SIZE = 2


class Registers(Protocol):
    """struct user_regs_struct."""

    rip: int
    rsp: int
    rax: int
    rcx: int
    eflags: int
    cs: int
    ss: int
    orig_rax: int


def size(vector: int) -> int:
    """Bytes of a frame with that many bytes of vector state, wherever it begins."""
    return _FRAME + _ALIGNMENT + vector + 8


def in_use(vector: bytes) -> bytes:
    """The vector state without the 8 KiB of AMX, unless they are in use."""
    (used,) = struct.unpack_from("<Q", vector, _USED_AT)
    if used & _TILES or len(vector) <= _TILES_AT:
        return vector
    (features,) = struct.unpack_from("<Q", vector, _SOFTWARE_AT)
    described = struct.pack("<Q", features & ~_TILES)
    return vector[:_SOFTWARE_AT] + described + vector[_SOFTWARE_AT + len(described) : _TILES_AT]


def frame(at: int, restorer: int, registers: Registers, mask: int, vector: bytes) -> bytes:
    """The frame for the address `at`. `vector`: as PTRACE_GETREGSET has it."""
    state_at = -(-(at + _FRAME) // _ALIGNMENT) * _ALIGNMENT
    rip, rax = _continued(registers)
    context = struct.pack("<13Q", *(getattr(registers, name) for name in _GENERAL))
    context += struct.pack("<5Q", rax, registers.rcx, registers.rsp, rip, registers.eflags)
    context += struct.pack("<4H4QQ", registers.cs, 0, 0, registers.ss, 0, 0, 0, 0, state_at) + bytes(64)
    made = struct.pack("<3Q", restorer, _FLAGS, 0) + _NO_STACK + context + struct.pack("<Q", mask)
    return made.ljust(state_at - at, b"\0") + _described(vector)


def _continued(registers: Registers) -> tuple[int, int]:
    """The instruction and rax with which the thread continues: a system call that was interrupted is made again."""
    number, result = registers.orig_rax, registers.rax - (registers.rax >> 63 << 64)
    if number >> 63 == 0 and result in _AGAIN:
        return registers.rip - _SYSCALL_SIZE, number
    if number >> 63 == 0 and result == _AGAIN_LATER:
        return registers.rip - _SYSCALL_SIZE, _RESTART_SYSCALL
    return registers.rip, registers.rax


def _described(vector: bytes) -> bytes:
    """The vector state with what the kernel looks for in a frame."""
    (features,) = struct.unpack_from("<Q", vector, _SOFTWARE_AT)
    description = struct.pack("<IIQI", _MAGIC_1, len(vector) + 4, features, len(vector))
    end = _SOFTWARE_AT + len(description)
    return vector[:_SOFTWARE_AT] + description + vector[end:] + struct.pack("<I", _MAGIC_2)
