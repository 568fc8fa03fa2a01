"""Rows of counters in the shared file and in private memory: moving them around a fork, also one that C code makes.

If both processes counted in one row, hits would be lost, and a return node taken in one process would be missing in the
other. So the forking thread's row is private memory from just before the fork. In the parent it goes back into the file; in
the child every row is private, until it has a file of its own (ftrace.core.counter_file).
"""

from __future__ import annotations

from sandbox.native import *
from sandbox.threads.counters import ROWS_AT
from sandbox.threads.system_calls import set_signal_mask
from sandbox.threads.tasks import ASYNCHRONOUS, CAPACITY, COUNTERS, STRIDE, claimed_high, current, slab
from sandbox.x86_64.syscalls import SYS_FSTAT, SYS_LSEEK, SYS_MADVISE, SYS_MMAP, SYS_MUNMAP, SYS_PWRITE64

_PAGE, _WORDS = 4096, 512
_PAGES = STRIDE // _PAGE
_SEEK_DATA = 3
_READ_WRITE = 3
_SHARED, _PRIVATE, _ANYWHERE = 0x4011, 0x4032, 0x4022
"""Flags of mmap, all without a reservation of memory: a file's at the address; no file's at the address, and anywhere."""
_NOHUGEPAGE, _DONTDUMP = 15, 16

descriptor = global_var(u64, 0, name="counter_fd")
"""The counter file's."""
device = global_var(u64, 0, name="counter_device")
inode = global_var(u64, 0, name="counter_inode")
"""Which file it was; 0: there is none."""
in_file = global_var(u64, 0, name="counters_in_file")
"""Whether the rows are in it."""
pages_high = global_var(u64, 1, name="counter_pages")
"""Pages of each row that lines have been handed out in."""


@native(export=True)
def has_file() -> bool_:
    """Whether the descriptor is still the counter file's: other code may have closed it, or opened another there."""
    stat: array[u64, 18] = zeroed
    failed = syscall(SYS_FSTAT, cast(i64, descriptor), cast(i64, addressof(stat[0])), 0, 0, 0, 0)
    return inode != 0 and failed == 0 and stat[0] == device and stat[1] == inode


@native(inline=True)
def row_at(index: u64) -> u64:
    return slab + COUNTERS + index * STRIDE


@native
def is_used(position: u64) -> bool_:
    """Whether the page at `position` of the file takes memory."""
    found = syscall(SYS_LSEEK, cast(i64, descriptor), cast(i64, position), _SEEK_DATA, 0, 0, 0)
    return found >= 0 and cast(u64, found) < position + _PAGE


@native
def has_counts(page: ptr[u64]) -> bool_:
    found: u64 = 0
    for index in range(_WORDS):
        found |= page[index]
    return found != 0


@native
def copy_page(to: ptr[u64], source: ptr[u64]) -> void:
    for index in range(_WORDS):
        to[index] = source[index]


@native
def make_private(index: u64, spare: u64) -> void:
    """Replace a row by private memory with the same contents; it stays as it is if none can be mapped.

    `spare`: memory for a row. mremap would do it at once, but may be denied where mmap is not.
    """
    row = row_at(index)
    copied: array[u8, _PAGES] = zeroed
    known = in_file != 0 and has_file()
    for page in range(pages_high):
        start = cast(u64, page) * _PAGE
        # To read a hole of the file would take memory: only where the file cannot be asked.
        if not known or is_used(ROWS_AT + index * STRIDE + start):
            copy_page(cast(ptr[u64], spare + start), cast(ptr[u64], row + start))
            copied[page] = 1
    if syscall(SYS_MMAP, cast(i64, row), STRIDE, _READ_WRITE, _PRIVATE, -1, 0) < 0:
        return
    syscall(SYS_MADVISE, cast(i64, row), STRIDE, _NOHUGEPAGE, 0, 0, 0)
    for page in range(pages_high):
        start = cast(u64, page) * _PAGE
        if copied[page] != 0 and has_counts(cast(ptr[u64], spare + start)):
            copy_page(cast(ptr[u64], row + start), cast(ptr[u64], spare + start))


@native
def write_row(index: u64) -> i64:
    """Write a private row into the file; pages of zeros stay holes. Returns a negative errno if it fails."""
    for page in range(pages_high):
        start = row_at(index) + cast(u64, page) * _PAGE
        position = ROWS_AT + index * STRIDE + cast(u64, page) * _PAGE
        if has_counts(cast(ptr[u64], start)) or is_used(position):
            done = syscall(SYS_PWRITE64, cast(i64, descriptor), cast(i64, start), _PAGE, cast(i64, position), 0, 0)
            if done < 0:
                return done
    return 0


@native
def map_rows(index: u64, count: u64) -> i64:
    """Map rows from the file. Returns a negative errno if that fails."""
    start = row_at(index)
    position = cast(i64, ROWS_AT + index * STRIDE)
    size = cast(i64, count * STRIDE)
    done = syscall(SYS_MMAP, cast(i64, start), size, _READ_WRITE, _SHARED, cast(i64, descriptor), position)
    if done > 0:
        syscall(SYS_MADVISE, cast(i64, start), size, _DONTDUMP, 0, 0, 0)
        return 0
    return done


@native(export=True)
def rows_into_file() -> i64:
    """Move all rows into the file, whose holes read as 0. No other thread counts. Returns a negative errno if it fails."""
    global in_file
    old = set_signal_mask(ASYNCHRONOUS)
    failed: i64 = 0
    for index in range(claimed_high):
        if failed == 0:
            failed = write_row(cast(u64, index))
    if failed == 0:
        failed = map_rows(0, CAPACITY)
    if failed == 0:
        in_file = 1
    set_signal_mask(old)
    return failed


@native
def own_spare() -> i64:
    """Memory for a whole row, as another thread may hand out lines meanwhile. A negative errno if there is none."""
    return syscall(SYS_MMAP, 0, STRIDE, _READ_WRITE, _ANYWHERE, -1, 0)


@native(export=True)
def rows_prepare() -> void:
    """Before a fork, last of all: the forking thread counts in private memory. Only it uses the row, and it is here."""
    task = current()
    if in_file == 0 or task == null:
        return
    old = set_signal_mask(ASYNCHRONOUS)
    spare = own_spare()
    if spare > 0:
        make_private(cast(u64, task.index), cast(u64, spare))
        syscall(SYS_MUNMAP, spare, STRIDE, 0, 0, 0, 0)
    set_signal_mask(old)


@native(export=True)
def rows_in_parent() -> void:
    """After a fork, first of all: back into the file, if it is still there."""
    task = current()
    if in_file == 0 or task == null or not has_file():
        return
    old = set_signal_mask(ASYNCHRONOUS)
    if write_row(cast(u64, task.index)) == 0:
        map_rows(cast(u64, task.index), 1)
    set_signal_mask(old)


@native(export=True)
def rows_in_child() -> void:
    """In the child of a fork, first of all: the rows of all threads are private, with the counts so far."""
    global in_file
    if in_file == 0:
        return
    old = set_signal_mask(ASYNCHRONOUS)
    spare = own_spare()
    if spare > 0:
        for index in range(claimed_high):
            make_private(cast(u64, index), cast(u64, spare))
        syscall(SYS_MUNMAP, spare, STRIDE, 0, 0, 0, 0)
    rest = cast(i64, (CAPACITY - claimed_high) * STRIDE)
    if rest > 0:
        syscall(SYS_MMAP, cast(i64, row_at(claimed_high)), rest, _READ_WRITE, _PRIVATE, -1, 0)
    in_file = 0
    set_signal_mask(old)


FUNCTIONS = (has_file, rows_into_file, rows_prepare, rows_in_parent, rows_in_child)
