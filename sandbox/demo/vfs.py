"""What is the same for every file system.

Errors are negative errno values; a function that returns a pointer returns them as one (the last 4095 addresses).
"""

from __future__ import annotations

from errno import EBADF, EEXIST, EISDIR, ENFILE, ENOENT, ENOMEM, ENOSPC

from sandbox.demo.dcache import d_alloc, d_drop, dget, lookup_last, path_parentat
from sandbox.demo.lib import alloc_bit, clear_bit, strncpy_from_user
from sandbox.demo.mm import kfree, kmalloc
from sandbox.demo.ramfs import s_isdir, truncate_inode_pages
from sandbox.demo.sched import get_current
from sandbox.demo.structures import (
    INODES,
    O_ACCMODE,
    O_CREAT,
    O_TRUNC,
    O_WRONLY,
    OBJECT_SIZE,
    PAGE_SIZE,
    PAGES,
    S_IALLUGO,
    S_IFDIR,
    S_IFMT,
    Dentry,
    File,
    Inode,
    Kstatfs,
    Nameidata,
    OpenFlags,
    nr_files,
)
from sandbox.native import *

MAX_ERRNO = 4095
RAMFS_MAGIC = 0x858458F6
MAX_LFS_FILESIZE = 0x7FFF_FFFF_FFFF_FFFF

dput = extern("dput", fn[void, ptr[Dentry]])
putname = extern("putname", fn[void, ptr[u8]])
fput = extern("fput", fn[void, ptr[File]])
vfs_mkdir = extern("vfs_mkdir", fn[i32, ptr[Inode], ptr[Dentry], u32])
vfs_fsync_range = extern("vfs_fsync_range", fn[i32, ptr[File], i64, i64, i32])


@native
def is_err(pointer: ptr[u8]) -> bool_:
    return cast(i64, pointer) < 0 and cast(i64, pointer) >= -MAX_ERRNO


# Names from outside.


@native
def getname(filename: ptr[u8]) -> ptr[u8]:
    """A copy of a path of 1 to 63 bytes, or -ENOENT, -ENAMETOOLONG, -ENOMEM."""
    name = kmalloc(OBJECT_SIZE, 0)
    if name == null:
        return cast(ptr[u8], -ENOMEM)
    length = strncpy_from_user(name, filename, OBJECT_SIZE)
    if length > 0:
        return name
    kfree(name)
    return cast(ptr[u8], length if length < 0 else -ENOENT)


# Open files.


@native
def alloc_empty_file(flags: u32) -> ptr[File]:
    task = get_current()
    nr = alloc_bit(addressof(task.file_map))
    if nr < 0:
        return null
    file = addressof(task.files[nr])
    zero_fill(file)
    file.f_flags = flags
    file.f_count = 1
    atomic_add(addressof(nr_files), 1, "relaxed")
    return file


@native
def file_free(file: ptr[File]) -> void:
    task = get_current()
    offset = cast(u64, file) - cast(u64, addressof(task.files))
    clear_bit(offset // sizeof(File), addressof(task.file_map))
    atomic_sub(addressof(nr_files), 1, "relaxed")


@native
def __fput(file: ptr[File]) -> void:
    dput(file.f_dentry)
    file_free(file)


@native
def filp_close(file: ptr[File]) -> i32:
    fput(file)
    return 0


# Opening.


@native
def vfs_create(dir: ptr[Inode], dentry: ptr[Dentry], mode: u32, want_excl: bool_) -> i32:
    return dir.i_op.create(dir, dentry, mode)


@native
def lookup_create(nd: ptr[Nameidata], mode: u32) -> ptr[Dentry]:
    """Makes what nd names: a directory if mode says so, else a file; its dentry, or -ENOSPC."""
    dentry = d_alloc(nd.dir, nd.last, nd.hash_len)
    if dentry == null:
        return cast(ptr[Dentry], -ENOSPC)
    dir = nd.dir.d_inode
    error = vfs_mkdir(dir, dentry, mode) if mode & S_IFMT == S_IFDIR else vfs_create(dir, dentry, mode, False)
    if error < 0:
        dput(dentry)
        return cast(ptr[Dentry], -ENOSPC)
    return dentry


@native
def vfs_open(dentry: ptr[Dentry], file: ptr[File]) -> i32:
    """Ties a file to its inode; with O_TRUNC (and leave to write) the file is emptied."""
    file.f_dentry = dget(dentry)
    file.f_inode = dentry.d_inode
    file.f_op = dentry.d_inode.i_fop
    if file.f_flags & O_TRUNC != 0 and file.f_flags & O_ACCMODE != 0:
        truncate_inode_pages(file.f_inode)
    return 0


@native
def do_open(dentry: ptr[Dentry], flags: u32) -> ptr[File]:
    """A file on a dentry, or -EISDIR (a directory to be written), -ENFILE."""
    if s_isdir(dentry.d_inode) and flags & O_ACCMODE != 0:
        return cast(ptr[File], -EISDIR)
    file = alloc_empty_file(flags)
    if file == null:
        return cast(ptr[File], -ENFILE)
    vfs_open(dentry, file)
    return file


@native
def lookup_open(nd: ptr[Nameidata], op: ptr[OpenFlags]) -> ptr[Dentry]:
    """Finds or makes the dentry that nd names, as the flags say; or an error."""
    found = lookup_last(nd)
    if found != null:
        return found
    if op.flags & O_CREAT == 0:
        return cast(ptr[Dentry], -ENOENT)
    return lookup_create(nd, op.mode & S_IALLUGO)


@native
def do_filp_open(dfd: i32, pathname: ptr[u8], op: ptr[OpenFlags]) -> ptr[File]:
    """dfd is not used: every path is taken from the root."""
    nd: Nameidata = zeroed
    error = path_parentat(pathname, addressof(nd))
    if error < 0:
        return cast(ptr[File], cast(i64, error))
    dentry = lookup_open(addressof(nd), op)
    dput(nd.dir)
    if is_err(cast(ptr[u8], dentry)):
        return cast(ptr[File], dentry)
    file = do_open(dentry, op.flags)
    dput(dentry)
    return file


@native
def do_mknodat(dfd: i32, name: ptr[u8], mode: u32) -> i32:
    """Makes a directory (mode has the format of one), device or file; 0 or an error. An existing name is left as it is."""
    nd: Nameidata = zeroed
    error = path_parentat(name, addressof(nd))
    if error < 0:
        return error
    found = lookup_last(addressof(nd))
    if found != null:
        dput(found)
        dput(nd.dir)
        return -EEXIST
    made = lookup_create(addressof(nd), mode)
    dput(nd.dir)
    if is_err(cast(ptr[u8], made)):
        return cast(i32, cast(i64, made))
    dput(made)
    return 0


# Reading, writing, and the rest.


@native
def vfs_read(file: ptr[File], buf: ptr[u8], count: u64, pos: ptr[u64]) -> i64:
    """Bytes read into buf from pos[0] on, which moves; or -EBADF (opened to write only), -EISDIR."""
    if file.f_flags & O_ACCMODE == O_WRONLY:
        return -EBADF
    return file.f_op.read(file, buf, count, pos)


@native
def vfs_write(file: ptr[File], buf: ptr[u8], count: u64, pos: ptr[u64]) -> i64:
    """Bytes written from buf at pos[0], which moves; or -EBADF (opened to read only), -EFBIG, -ENOSPC."""
    if file.f_flags & O_ACCMODE == 0:
        return -EBADF
    return file.f_op.write(file, buf, count, pos)


@native
def vfs_fsync(file: ptr[File], datasync: i32) -> i32:
    return vfs_fsync_range(file, 0, MAX_LFS_FILESIZE, datasync)


@native
def vfs_statfs(dentry: ptr[Dentry], buf: ptr[Kstatfs]) -> i32:
    task = get_current()
    buf.f_type = RAMFS_MAGIC
    buf.f_bsize = PAGE_SIZE
    buf.f_blocks = PAGES
    buf.f_bfree = 64 - popcount(task.page_map)
    buf.f_files = INODES
    buf.f_ffree = 64 - popcount(task.inode_map)
    return 0


@native
def vfs_unlink(dir: ptr[Inode], dentry: ptr[Dentry]) -> i32:
    """0, or -EISDIR. Who has the file open keeps it."""
    if s_isdir(dentry.d_inode):
        return -EISDIR
    error = dir.i_op.unlink(dir, dentry)
    d_drop(dentry)
    return error


@native
def do_unlinkat(dfd: i32, name: ptr[u8]) -> i32:
    nd: Nameidata = zeroed
    error = path_parentat(name, addressof(nd))
    if error < 0:
        return error
    dentry = lookup_last(addressof(nd))
    if dentry == null:
        dput(nd.dir)
        return -ENOENT
    error = vfs_unlink(nd.dir.d_inode, dentry)
    dput(dentry)
    dput(nd.dir)
    return error
