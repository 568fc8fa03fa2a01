"""Moving the forking thread's row of counters from the shared file to private memory and back, around a fork.

Until the child has a file of its own, both processes would count in that row, and a return node taken in one process would
be missing in the other.
"""

from __future__ import annotations

from sandbox.native import *
from sandbox.threads.system_calls import set_signal_mask
from sandbox.threads.tasks import ASYNCHRONOUS, COUNTERS, STRIDE, task_get
from sandbox.x86_64.syscalls import SYS_LSEEK, SYS_MADVISE, SYS_MMAP

_PAGE, _WORDS = 4096, 512
_PAGES = STRIDE // _PAGE
_SEEK_DATA = 3
_READ_WRITE = 3
_SHARED, _PRIVATE = 0x4011, 0x4032
"""Flags of mmap: at the address, without a reservation of memory; private memory of no file."""
_NOHUGEPAGE, _DONTDUMP = 15, 16


@native
def is_used(fd: u64, position: u64) -> bool_:
    """Whether the page at `position` of a file takes memory."""
    found = syscall(SYS_LSEEK, cast(i64, fd), cast(i64, position), _SEEK_DATA, 0, 0, 0)
    return found >= 0 and cast(u64, found) < position + _PAGE


@native
def copy_page(to: ptr[u64], source: ptr[u64], whole: bool_) -> bool_:
    """Copy a page: `whole`, or the words that are not zero. Returns whether there are any."""
    found = False
    for index in range(_WORDS):
        if source[index] != 0:
            found = True
        if whole or source[index] != 0:
            to[index] = source[index]
    return found


@native
def row_number() -> u64:
    """The running thread's row; all ones if there is no record left for it."""
    task = task_get()
    if task == null:
        return 0xFFFF_FFFF_FFFF_FFFF
    return cast(u64, task.index)


@native
def move_row(fd: u64, position: u64, spare: u64, to_file: u64) -> i64:
    """Replace the running thread's row by private memory or, if `to_file`, by the file `fd` from `position` on.

    The contents stay. `spare`: the address of zeroed memory for a row. Returns a negative errno if it cannot be mapped.

    mremap would do it at once, but may be denied where mmap is not. Only this thread uses the row, and it is here.
    """
    task = task_get()
    row = cast(u64, task) + COUNTERS
    copied: array[u8, _PAGES] = zeroed
    old = set_signal_mask(ASYNCHRONOUS)
    for page in range(_PAGES):
        start = cast(u64, page) * _PAGE
        readable = to_file != 0 or is_used(fd, position + start)  # to read a hole of a file would take memory
        if readable and copy_page(cast(ptr[u64], spare + start), cast(ptr[u64], row + start), False):
            copied[page] = 1
    mapped: i64 = 0
    if to_file != 0:
        mapped = syscall(SYS_MMAP, cast(i64, row), STRIDE, _READ_WRITE, _SHARED, cast(i64, fd), cast(i64, position))
        syscall(SYS_MADVISE, cast(i64, row), STRIDE, _DONTDUMP, 0, 0, 0)
    else:
        mapped = syscall(SYS_MMAP, cast(i64, row), STRIDE, _READ_WRITE, _PRIVATE, -1, 0)
        syscall(SYS_MADVISE, cast(i64, row), STRIDE, _NOHUGEPAGE, 0, 0, 0)
    for page in range(_PAGES):
        start = cast(u64, page) * _PAGE
        whole = to_file != 0 and mapped > 0 and is_used(fd, position + start)
        if mapped > 0 and (whole or copied[page] != 0):
            copy_page(cast(ptr[u64], row + start), cast(ptr[u64], spare + start), whole)
    set_signal_mask(old)
    return mapped
