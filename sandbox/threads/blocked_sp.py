"""Whether another thread of this process has ended, and where it is while it is blocked in a system call. Native, from /proc."""

from __future__ import annotations

from sandbox.native import *
from sandbox.x86_64.syscalls import SYS_CLOSE, SYS_GETPID, SYS_OPEN, SYS_READ, SYS_TGKILL

_O_CLOEXEC = 0o2000000
_FIRST, _SECOND = (int.from_bytes(part, "little") for part in (b"/proc/se", b"lf/task/"))
_FILE = int.from_bytes(b"/syscall", "little")
_NUMBER_AT = 16
"""Offset in the path of the thread's number."""
_TEXT = 256
_MINUS = ord("-")
"""What is read begins with -1 if the thread is in no system call."""
_ESRCH = -3
ENDED = 0xFFFF_FFFF_FFFF_FFFF
"""What `blocked_sp` returns for a thread that has ended."""


@native
def put_number(path: ptr[u8], number: u64) -> u64:
    """Write it in decimal digits; returns how many."""
    length: u64 = 1
    limit: u64 = 10
    while length < 16 and limit <= number:
        limit *= 10
        length += 1
    for index in range(length):
        limit //= 10
        path[index] = cast(u8, 48 + number // limit % 10)
    return length


@native
def last_but_one(text: ptr[u8], size: u64) -> u64:
    """The last but one of the numbers that begin with 0x; 0 if there are fewer."""
    before: u64 = 0
    last: u64 = 0
    for index in range(min(size, _TEXT)):
        digit = cast(u64, text[index])
        if digit == 120:
            before = last >> 4  # without the 0 of 0x
            last = 0
        elif digit >= 48 and digit <= 57:
            last = last << 4 | digit - 48
        elif digit >= 97 and digit <= 102:
            last = last << 4 | digit - 87
    return before


@native
def read_call(tid: u64, text: ptr[u8]) -> u64:
    """Read what /proc has of a thread's system call, up to _TEXT bytes; returns how many."""
    path: array[u64, 6] = zeroed
    path[0] = _FIRST
    path[1] = _SECOND
    start = cast(ptr[u8], addressof(path[0]))
    end = _NUMBER_AT + put_number(addressof(start[_NUMBER_AT]), tid)
    cast(ptr[u64], addressof(start[end]))[0] = _FILE
    start[end + 8] = 0
    file = syscall(SYS_OPEN, cast(i64, start), _O_CLOEXEC, 0, 0, 0, 0)
    if file < 0:
        return 0
    size = syscall(SYS_READ, file, cast(i64, text), _TEXT, 0, 0, 0)
    syscall(SYS_CLOSE, file, 0, 0, 0, 0, 0)
    return cast(u64, max(size, 0))


@native(noinline=True)
def blocked_sp(tid: u64) -> u64:
    """The stack pointer of a blocked thread of this process; ENDED if it has ended; 0 if it is running or cannot be read.

    Another process may have the number of a thread that has ended. The process's first thread stays as a zombie, which is in no
    system call and has no stack.
    """
    if syscall(SYS_TGKILL, syscall(SYS_GETPID, 0, 0, 0, 0, 0, 0), cast(i64, tid), 0, 0, 0, 0) == _ESRCH:
        return ENDED
    text: array[u8, 256] = zeroed
    size = read_call(tid, addressof(text[0]))
    sp = last_but_one(addressof(text[0]), size)
    return cast(u64, ENDED) if size > 0 and text[0] == _MINUS and sp == 0 else sp
