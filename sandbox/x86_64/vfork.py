"""vfork() in C libraries: the return address is popped, the system call made, and the address pushed again.

The child would otherwise overwrite it with its next call, in the stack that it shares with its parent.
"""

from __future__ import annotations

from sandbox.x86_64.encoding import JMP32_SIZE
from sandbox.x86_64.instruction import decode

_SYSCALL = b"\x0f\x05"
_PUSH = range(0x50, 0x58)
_LONGEST = 15


def system_call(code: bytes, address: int) -> tuple[int, bytes] | None:
    """Where the function at `address` makes the system call, and the instructions from there on that a jump covers.

    The first bytes of `code` may be a jump to a detour. None if the function is not of that kind.
    """
    at = code.find(_SYSCALL, JMP32_SIZE)
    end = at + len(_SYSCALL)
    if at < 0 or code[end] not in _PUSH:
        return None
    while end - at < JMP32_SIZE:
        try:
            end += len(decode(code[end : end + _LONGEST], address + end).code)
        except ValueError:
            return None
    return address + at, code[at:end]


def call_of(covered: bytes, target: int) -> bytes:
    """Code in the place of the system call: push the return address, and jump to the function `target`."""
    push = covered[len(_SYSCALL) : len(_SYSCALL) + 1]
    return push + b"\x48\xb8" + target.to_bytes(8, "little") + b"\xff\xe0"  # movabs $target, %rax; jmp *%rax
