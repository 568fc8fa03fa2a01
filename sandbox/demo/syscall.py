"""File descriptors, the system calls, and the way into them."""

from __future__ import annotations

from errno import EBADF, EMFILE, ENOSYS

from sandbox.demo.mm import do_mmap
from sandbox.demo.sched import get_current, schedule
from sandbox.demo.structures import AT_FDCWD, FDS, PAGE_SIZE, File, Kstatfs, OpenFlags, Registers
from sandbox.demo.vfs import (
    do_filp_open,
    do_unlinkat,
    filp_close,
    getname,
    is_err,
    putname,
    vfs_fsync,
    vfs_read,
    vfs_statfs,
    vfs_write,
)
from sandbox.native import *

NR_SYSCALLS = 12

sys_call_table = extern("sys_call_table", array[fn[i64, ptr[Registers]], NR_SYSCALLS])
vfs_llseek = extern("vfs_llseek", fn[i64, ptr[File], i64, i32])


# File descriptors: 0 to 15.


@native
def get_unused_fd_flags(flags: u32) -> i32:
    """The lowest free descriptor, or -EMFILE."""
    task = get_current()
    for fd in range(cast(i32, FDS)):
        if task.fds[fd] == null:
            return fd
    return -EMFILE


@native
def fd_install(fd: i32, file: ptr[File]) -> void:
    get_current().fds[fd] = file


@native
def fdget(fd: i32) -> ptr[File]:
    """The file of a descriptor, or null."""
    if fd < 0 or fd >= FDS:
        return null
    return get_current().fds[fd]


# The calls.


@native
def do_sys_open(dfd: i32, filename: ptr[u8], flags: u32, mode: u32) -> i64:
    """A descriptor, or a negative errno. filename is a string; for flags see structures.py."""
    op: OpenFlags = zeroed
    op.flags = flags
    op.mode = mode
    name = getname(filename)
    if is_err(name):
        return cast(i64, name)
    fd = get_unused_fd_flags(flags)
    result = cast(i64, fd)
    if fd >= 0:
        file = do_filp_open(dfd, name, addressof(op))
        if is_err(cast(ptr[u8], file)):
            result = cast(i64, file)
        else:
            fd_install(fd, file)
    putname(name)
    return result


@native
def ksys_read(fd: i32, buf: ptr[u8], count: u64) -> i64:
    file = fdget(fd)
    if file == null:
        return -EBADF
    return vfs_read(file, buf, count, addressof(file.f_pos))


@native
def ksys_write(fd: i32, buf: ptr[u8], count: u64) -> i64:
    file = fdget(fd)
    if file == null:
        return -EBADF
    return vfs_write(file, buf, count, addressof(file.f_pos))


@native
def close_fd(fd: i32) -> i32:
    file = fdget(fd)
    if file == null:
        return -EBADF
    fd_install(fd, null)
    return filp_close(file)


@native
def ksys_mmap(addr: u64, len: u64, prot: u64, flags: u64, fd: i32, pgoff: u64) -> i64:
    """The address of a new mapping of a file; see do_mmap."""
    populate: u64 = 0
    file = fdget(fd)
    if file == null:
        return -EBADF
    where = do_mmap(file, addr, len, prot, flags, 0, pgoff, addressof(populate))
    get_current().nr_populated += populate
    return where


# From the registers of a caller to the calls.


@native
def __x64_sys_read(regs: ptr[Registers]) -> i64:
    return ksys_read(cast(i32, regs.di), cast(ptr[u8], regs.si), regs.dx)


@native
def __x64_sys_write(regs: ptr[Registers]) -> i64:
    return ksys_write(cast(i32, regs.di), cast(ptr[u8], regs.si), regs.dx)


@native
def __x64_sys_open(regs: ptr[Registers]) -> i64:
    return do_sys_open(AT_FDCWD, cast(ptr[u8], regs.di), cast(u32, regs.si), cast(u32, regs.dx))


@native
def __x64_sys_close(regs: ptr[Registers]) -> i64:
    return cast(i64, close_fd(cast(i32, regs.di)))


@native
def __x64_sys_lseek(regs: ptr[Registers]) -> i64:
    file = fdget(cast(i32, regs.di))
    if file == null:
        return -EBADF
    return vfs_llseek(file, cast(i64, regs.si), cast(i32, regs.dx))


@native
def __x64_sys_mmap(regs: ptr[Registers]) -> i64:
    return ksys_mmap(regs.di, regs.si, regs.dx, regs.r10, cast(i32, regs.r8), regs.r9 // PAGE_SIZE)


@native
def __x64_sys_fsync(regs: ptr[Registers]) -> i64:
    file = fdget(cast(i32, regs.di))
    if file == null:
        return -EBADF
    return cast(i64, vfs_fsync(file, 0))


@native
def __x64_sys_unlink(regs: ptr[Registers]) -> i64:
    name = getname(cast(ptr[u8], regs.di))
    if is_err(name):
        return cast(i64, name)
    error = do_unlinkat(AT_FDCWD, name)
    putname(name)
    return cast(i64, error)


@native
def __x64_sys_fstatfs(regs: ptr[Registers]) -> i64:
    file = fdget(cast(i32, regs.di))
    if file == null:
        return -EBADF
    return cast(i64, vfs_statfs(file.f_dentry, cast(ptr[Kstatfs], regs.si)))


@native
def __x64_sys_sched_yield(regs: ptr[Registers]) -> i64:
    return cast(i64, schedule())


@native
def sys_ni_syscall(regs: ptr[Registers]) -> i64:
    return -ENOSYS


@native
def do_syscall(nr: u64, di: u64, si: u64, dx: u64, r10: u64, r8: u64, r9: u64) -> i64:
    """Seven arguments: the last travels on the stack. The last call of the table is for every number above it."""
    regs: Registers = zeroed
    regs.di = di
    regs.si = si
    regs.dx = dx
    regs.r10 = r10
    regs.r8 = r8
    regs.r9 = r9
    return sys_call_table[min(nr, NR_SYSCALLS - 1)](addressof(regs))
