"""Moving the forking thread's row of counters from the shared file to private memory and back, around a fork.

Until the child has a file of its own, both processes would count in that row, and a return node taken in one process would
be missing in the other.
"""

from __future__ import annotations

from sandbox.native import bool_, cast, i64, native, null, ptr, syscall, u64, void
from sandbox.threads.system_calls import set_signal_mask
from sandbox.threads.tasks import ASYNCHRONOUS, COUNTERS, STRIDE, task_get
from sandbox.x86_64.syscalls import SYS_LSEEK, SYS_MREMAP

_PAGE, _WORDS = 4096, 512
_SEEK_DATA = 3
_MREMAP_MAYMOVE_FIXED = 3


@native
def is_used(fd: u64, position: u64) -> bool_:
    """Whether the page at `position` of a file takes memory."""
    found = syscall(SYS_LSEEK, cast(i64, fd), cast(i64, position), _SEEK_DATA, 0, 0, 0)
    return found >= 0 and cast(u64, found) < position + _PAGE


@native
def copy_page(to: ptr[u64], source: ptr[u64], whole: bool_) -> void:
    for index in range(_WORDS):
        if whole or source[index] != 0:
            to[index] = source[index]


@native
def row_number() -> u64:
    """The running thread's row; all ones if there is no record left for it."""
    task = task_get()
    if task == null:
        return 0xFFFF_FFFF_FFFF_FFFF
    return cast(u64, task.index)


@native
def move_row(fd: u64, position: u64, other: u64, to_file: u64) -> i64:
    """Replace the running thread's row by the memory at `other`, with the same contents.

    That is private and zero or, if `to_file`, a shared view of the file `fd` from `position` on, where the row belongs.
    """
    task = task_get()
    row = cast(u64, task) + COUNTERS
    old = set_signal_mask(ASYNCHRONOUS)
    for page in range(STRIDE // _PAGE):
        start = cast(u64, page) * _PAGE
        in_file = is_used(fd, position + start)
        if in_file or to_file != 0:
            copy_page(cast(ptr[u64], other + start), cast(ptr[u64], row + start), in_file)
    moved = syscall(SYS_MREMAP, cast(i64, other), STRIDE, STRIDE, _MREMAP_MAYMOVE_FIXED, cast(i64, row), 0)
    set_signal_mask(old)
    return moved
