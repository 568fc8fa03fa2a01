"""Small objects, page frames, mappings. All of it belongs to the current task."""

from __future__ import annotations

from errno import EINVAL

from sandbox.demo.lib import alloc_bit, clear_bit, clear_user
from sandbox.demo.sched import get_current
from sandbox.demo.structures import (
    DENTRIES,
    FILES,
    INODES,
    LOG_SIZE,
    OBJECT_SIZE,
    OBJECTS,
    PAGES,
    PAGES_PER_FILE,
    File,
    Inode,
    Task,
)
from sandbox.native import *

ALL_BITS = 0xFFFF_FFFF_FFFF_FFFF
MAP_BASE, MAP_GRANULE = 4 << 20, 4096

clear_page = extern("clear_page", fn[void, ptr[u8]])


@native
def kmalloc(size: u64, flags: i32) -> ptr[u8]:
    """An object of up to 64 bytes, or null."""
    task = get_current()
    if size > OBJECT_SIZE:
        return null
    nr = alloc_bit(addressof(task.object_map))
    if nr < 0:
        return null
    return addressof(task.objects[nr][0])


@native
def kfree(object: ptr[u8]) -> void:
    if object == null:
        return
    task = get_current()
    offset = cast(u64, object) - cast(u64, addressof(task.objects))
    clear_bit(offset // OBJECT_SIZE, addressof(task.object_map))


# Page frames are numbered from 1, so that 0 can mean none.


@native
def page_address(page: u32) -> ptr[u8]:
    return addressof(get_current().pages[page - 1][0])


@native
def alloc_page(flags: i32) -> u32:
    """A zeroed page, or 0."""
    frame = alloc_bit(addressof(get_current().page_map))
    if frame < 0:
        return 0
    page = cast(u32, frame) + 1
    clear_page(page_address(page))
    return page


@native
def free_page(page: u32) -> void:
    clear_bit(cast(u64, page - 1), addressof(get_current().page_map))


@native
def count_resident(inode: ptr[Inode], first: u64) -> u64:
    """Pages that are not holes, from the given one on."""
    count: u64 = 0
    for i in range(first, PAGES_PER_FILE):
        if inode.i_pages[i] != 0:
            count += 1
    return count


@native
def get_unmapped_area(len: u64) -> u64:
    """Room for a mapping, in whole granules."""
    task = get_current()
    base = task.mmap_base
    task.mmap_base = base + (len + MAP_GRANULE - 1 & ~(MAP_GRANULE - 1))
    return base


@native
def do_mmap(
    file: ptr[File], addr: u64, len: u64, prot: u64, flags: u64, vm_flags: u64, pgoff: u64, populate: ptr[u64]
) -> i64:
    """Reserves len bytes of address space; their address, which is addr itself if that is not 0; or -EINVAL.

    Counts the pages that the file has from page pgoff on into populate[0]. Nothing is really mapped. Eight arguments:
    the last two travel on the stack.
    """
    if len == 0 or pgoff >= PAGES_PER_FILE:
        return -EINVAL
    populate[0] = count_resident(file.f_inode, pgoff)
    return cast(i64, addr if addr != 0 else get_unmapped_area(len))


@native
def mm_init(task: ptr[Task]) -> void:
    """Everything free. Bits of a map without a frame are always set."""
    task.page_map = ALL_BITS ^ (1 << PAGES) - 1
    task.inode_map = ALL_BITS ^ (1 << INODES) - 1
    task.dentry_map = ALL_BITS ^ (1 << DENTRIES) - 1
    task.file_map = ALL_BITS ^ (1 << FILES) - 1
    task.object_map = ALL_BITS ^ (1 << OBJECTS) - 1
    task.mmap_base = MAP_BASE
    task.ticks = 0
    task.load = 0
    task.preempt_count = 0
    task.disk_head = 0
    task.nr_written = 0
    task.disk_sum = 0
    task.log_count = 0
    task.nr_populated = 0
    zero_fill(addressof(task.fds))
    clear_user(addressof(task.log_buf[0]), LOG_SIZE)
