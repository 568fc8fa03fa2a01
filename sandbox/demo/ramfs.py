"""Files in memory: eight pages of 512 bytes each, holes read as zeroes; and what the operation tables point to."""

from __future__ import annotations

from errno import EFBIG, EINVAL, EISDIR, ENOSPC

from sandbox.demo.lib import alloc_bit, clear_bit, clear_user
from sandbox.demo.mm import alloc_page, free_page, page_address
from sandbox.demo.sched import get_current
from sandbox.demo.structures import (
    MAX_FILE_SIZE,
    O_APPEND,
    PAGE_SIZE,
    PAGES_PER_FILE,
    S_IFDIR,
    S_IFMT,
    SEEK_CUR,
    SEEK_END,
    SEEK_SET,
    File,
    Inode,
)
from sandbox.native import *

copy_to_user = extern("copy_to_user", fn[u64, ptr[u8], ptr[u8], u64])
copy_from_user = extern("copy_from_user", fn[u64, ptr[u8], ptr[u8], u64])
inode_init_owner = extern("inode_init_owner", fn[void, ptr[Inode], u32])
write_end = extern("write_end", fn[void, ptr[Inode], u64])
elv_scan_up = extern("elv_scan_up", fn[i32, ptr[Inode], i32, i32])


@native
def s_isdir(inode: ptr[Inode]) -> bool_:
    return inode.i_mode & S_IFMT == S_IFDIR


@native
def new_inode(mode: u32) -> ptr[Inode]:
    """An inode with one link and one reference, or null. Its number is the lowest free one, from 1."""
    task = get_current()
    nr = alloc_bit(addressof(task.inode_map))
    if nr < 0:
        return null
    inode = addressof(task.inodes[nr])
    zero_fill(inode)
    inode.i_ino = cast(u64, nr) + 1
    inode_init_owner(inode, mode)
    return inode


@native
def truncate_inode_pages(inode: ptr[Inode]) -> void:
    """Frees all pages of a file; its size is 0 then."""
    inode.i_size = 0
    inode.i_dirty = 0
    for i in range(PAGES_PER_FILE):
        page = inode.i_pages[i]
        inode.i_pages[i] = 0
        if page != 0:
            free_page(page)


@native
def evict(inode: ptr[Inode]) -> void:
    truncate_inode_pages(inode)
    clear_bit(inode.i_ino - 1, addressof(get_current().inode_map))


# Reading and writing.


@native
def generic_file_llseek(file: ptr[File], offset: i64, whence: i32) -> i64:
    """The new position, or -EINVAL for one before the start or after byte 4096."""
    base: u64 = 0
    if whence == SEEK_CUR:
        base = file.f_pos
    elif whence == SEEK_END:
        base = file.f_inode.i_size
    elif whence != SEEK_SET:
        return -EINVAL
    target = base + cast(u64, offset)
    if target > MAX_FILE_SIZE:
        return -EINVAL
    file.f_pos = target
    return cast(i64, target)


@native
def copy_page_to_iter(page: u32, offset: u64, bytes: u64, to: ptr[u8]) -> void:
    """Reads within one page; page 0 is a hole."""
    if page == 0:
        clear_user(to, bytes)
    else:
        copy_to_user(to, addressof(page_address(page)[offset]), bytes)


@native
def generic_file_read(file: ptr[File], buf: ptr[u8], count: u64, pos: ptr[u64]) -> i64:
    """The bytes read: what the file has from pos[0] on, up to count."""
    inode = file.f_inode
    start = pos[0]
    total = min(max(inode.i_size, start) - start, count)
    done: u64 = 0
    while done < total:
        index = (start + done) // PAGE_SIZE
        offset = (start + done) % PAGE_SIZE
        bytes = min(PAGE_SIZE - offset, total - done)
        copy_page_to_iter(inode.i_pages[index], offset, bytes, addressof(buf[done]))
        done += bytes
    pos[0] = start + total
    return cast(i64, total)


@native
def generic_write_checks(file: ptr[File], pos: ptr[u64], count: u64) -> i64:
    """How much of count may be written at pos[0], which moves to the end with O_APPEND; or -EFBIG."""
    if file.f_flags & O_APPEND != 0:
        pos[0] = file.f_inode.i_size
    if pos[0] >= MAX_FILE_SIZE:
        return -EFBIG
    return cast(i64, min(MAX_FILE_SIZE - pos[0], count))


@native
def write_begin(inode: ptr[Inode], index: u64) -> u32:
    """The page of a file, allocated if it is a hole, and marked dirty; 0 when there is none left."""
    if inode.i_pages[index] == 0:
        inode.i_pages[index] = alloc_page(0)
    page = inode.i_pages[index]
    if page != 0:
        inode.i_dirty |= cast(u32, 1) << index
    return page


@native
def generic_file_write(file: ptr[File], buf: ptr[u8], count: u64, pos: ptr[u64]) -> i64:
    """Writes what fits: the bytes written, -EFBIG, or -ENOSPC if not even one could be written."""
    allowed = generic_write_checks(file, pos, count)
    if allowed <= 0:
        return allowed
    inode = file.f_inode
    start = pos[0]
    total = cast(u64, allowed)
    done: u64 = 0
    while done < total:
        index = (start + done) // PAGE_SIZE
        offset = (start + done) % PAGE_SIZE
        bytes = min(PAGE_SIZE - offset, total - done)
        page = write_begin(inode, index)
        if page == 0:
            break
        copy_from_user(addressof(page_address(page)[offset]), addressof(buf[done]), bytes)
        done += bytes
    if done == 0:
        return -ENOSPC
    pos[0] = start + done
    write_end(inode, start + done)
    return cast(i64, done)


@native
def generic_file_fsync(file: ptr[File], start: i64, end: i64, datasync: i32) -> i32:
    """Writes out what is dirty, as an elevator: from the page last written up, then from the top down."""
    elv_scan_up(file.f_inode, cast(i32, get_current().disk_head), 0)
    return 0


# Directories, /dev/zero, and what they have in common.


@native
def generic_read_dir(file: ptr[File], buf: ptr[u8], count: u64, pos: ptr[u64]) -> i64:
    return -EISDIR


@native
def dir_write(file: ptr[File], buf: ptr[u8], count: u64, pos: ptr[u64]) -> i64:
    return -EISDIR


@native
def read_zero(file: ptr[File], buf: ptr[u8], count: u64, pos: ptr[u64]) -> i64:
    clear_user(buf, count)
    return cast(i64, count)


@native
def write_null(file: ptr[File], buf: ptr[u8], count: u64, pos: ptr[u64]) -> i64:
    return cast(i64, count)


@native
def noop_llseek(file: ptr[File], offset: i64, whence: i32) -> i64:
    return cast(i64, file.f_pos)


@native
def noop_fsync(file: ptr[File], start: i64, end: i64, datasync: i32) -> i32:
    return 0
