"""What the demo's memory holds. The IR files know these structs too, and address a field by its number, from 0 on."""

from __future__ import annotations

from sandbox.native import *

PAGE_SIZE = 512
PAGES_PER_FILE = 8
MAX_FILE_SIZE = PAGES_PER_FILE * PAGE_SIZE
TASKS, FDS, FILES, INODES, DENTRIES, PAGES, OBJECTS = 16, 16, 16, 32, 32, 32, 32
NAME_LENGTH = 31
OBJECT_SIZE = 64
LOG_SIZE = 1024

S_IFMT, S_IFDIR, S_IALLUGO = 0o170000, 0o040000, 0o7777
O_WRONLY, O_RDWR, O_ACCMODE, O_CREAT, O_TRUNC, O_APPEND = 1, 2, 3, 64, 512, 1024
SEEK_SET, SEEK_CUR, SEEK_END = 0, 1, 2
AT_FDCWD = -100


@struct
class Timespec64:
    tv_sec: i64
    tv_nsec: i64


@struct
class Kstatfs:
    f_type: u64
    f_bsize: u64
    f_blocks: u64
    f_bfree: u64
    f_files: u64
    f_ffree: u64


@struct
class FileOperations:
    llseek: fn[i64, ptr[File], i64, i32]
    read: fn[i64, ptr[File], ptr[u8], u64, ptr[u64]]
    write: fn[i64, ptr[File], ptr[u8], u64, ptr[u64]]
    fsync: fn[i32, ptr[File], i64, i64, i32]


@struct
class InodeOperations:
    create: fn[i32, ptr[Inode], ptr[Dentry], u32]
    mkdir: fn[i32, ptr[Inode], ptr[Dentry], u32]
    unlink: fn[i32, ptr[Inode], ptr[Dentry]]


@struct
class Inode:
    i_ino: u64
    i_size: u64
    i_mode: u32
    i_nlink: u32
    i_count: u32
    i_dirty: u32  # bit n is page n
    i_op: ptr[InodeOperations]  # null for what is not a directory
    i_fop: ptr[FileOperations]
    i_mtime: Timespec64
    i_pages: array[u32, PAGES_PER_FILE]  # page frame + 1, 0 for a hole


@struct
class Dentry:
    d_parent: ptr[Dentry]  # holds a reference; null for the root
    d_inode: ptr[Inode]  # null while negative
    d_subdirs: ptr[Dentry]  # first child
    d_child: ptr[Dentry]  # next sibling
    d_hash_len: u64  # length << 32 | hash
    d_count: u32
    d_name: array[u8, NAME_LENGTH + 1]  # ends with NUL


@struct
class File:
    f_op: ptr[FileOperations]
    f_dentry: ptr[Dentry]
    f_inode: ptr[Inode]
    f_pos: u64
    f_flags: u32
    f_count: u32


@struct
class Nameidata:
    """The position of a walk along a path."""

    dir: ptr[Dentry]  # the directory reached so far
    last: ptr[u8]  # the last component
    hash_len: u64


@struct
class OpenFlags:
    flags: u32
    mode: u32


@struct
class SeqFile:
    """A text as it is being written."""

    buf: ptr[u8]
    size: u64
    count: u64


@struct
class SchedEntity:
    vruntime: u64
    weight: u64


@struct
class Rq:
    curr: u32
    nr_switches: u32
    entities: array[SchedEntity, 4]


@struct
class Registers:
    """The arguments of a system call."""

    di: u64
    si: u64
    dx: u64
    r10: u64
    r8: u64
    r9: u64


@struct
class Task:
    """Everything that one running demo owns. Nothing in it is shared with another one."""

    page_map: u64  # of page frames in use, a bit each, as the four that follow
    inode_map: u64
    dentry_map: u64
    file_map: u64
    object_map: u64
    root: ptr[Dentry]
    ticks: u64
    load: u64  # the load average: the bits of a double
    mmap_base: u64
    preempt_count: u32
    disk_head: u32  # the page last written out
    nr_written: u64  # pages written out
    disk_sum: u64  # checksum over them, in order
    log_count: u64  # bytes ever logged
    rq: Rq
    fds: array[ptr[File], FDS]
    files: array[File, FILES]
    inodes: array[Inode, INODES]
    dentries: array[Dentry, DENTRIES]
    pages: array[array[u8, PAGE_SIZE], PAGES]
    objects: array[array[u8, OBJECT_SIZE], OBJECTS]
    log_buf: array[u8, LOG_SIZE]  # a ring
    nr_populated: u64  # pages that mappings found resident


# Task 0 is for direct calls of the functions; 1 to 15 are for demo_main. The owner of a task is the thread
# pointer of the thread that runs as it; 0: free; 1: that thread runs as another task for now.
tasks = extern("tasks", array[Task, TASKS])
task_owner = extern("task_owner", array[u64, TASKS])

# Process-wide counters, changed by atomic operations only.
jiffies = extern("jiffies", u64)
nr_files = extern("nr_files", u64)
