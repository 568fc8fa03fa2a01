"""demo_main, which puts it all to work. Most parts of a round return a hash over all that they saw."""

from __future__ import annotations

from sandbox.demo.dcache import d_alloc, d_instantiate
from sandbox.demo.lib import GOLDEN_RATIO, csum_partial, hash_64, prandom_u32_state
from sandbox.demo.ramfs import new_inode
from sandbox.demo.sched import asm_sysvec_apic_timer_interrupt, copy_process, current_nr, do_exit, start_kernel
from sandbox.demo.structures import (
    LOG_SIZE,
    O_APPEND,
    O_CREAT,
    O_RDWR,
    O_TRUNC,
    OBJECT_SIZE,
    PAGE_SIZE,
    PAGES_PER_FILE,
    S_IFDIR,
    SEEK_END,
    SEEK_SET,
    Dentry,
    Kstatfs,
    Task,
    tasks,
)
from sandbox.demo.syscall import do_syscall
from sandbox.native import *

READ, WRITE, OPEN, CLOSE, LSEEK, MMAP, FSYNC, UNLINK, FSTATFS, SCHED_YIELD = 0, 1, 2, 3, 5, 6, 7, 8, 9, 10
NO_SUCH_CALL, NO_SUCH_FD = 1234, 99
PROT_READ_WRITE, MAP_SHARED = 3, 1

root_name = global_var(array[u8, 2], b"/\0")
path_home = global_var(array[u8, 6], b"/home\0")
path_dev_zero = global_var(array[u8, 10], b"/dev/zero\0")
path_missing = global_var(array[u8, 17], b"/home/carol/docs\0")
path_below_file = global_var(array[u8, 12], b"/dev/zero/x\0")
path_too_long = global_var(array[u8, 71], b"/home/alice/docs/a/path/that/is/longer/than/a/kmalloc/object/is/at/all\0")

simple_du = extern("simple_du", fn[u64, ptr[Dentry]])
demo_stat = extern("demo_stat", fn[u64, i64])
demo_path = extern("demo_path", fn[i32, ptr[u8], u64, u32])
demo_log = extern("demo_log", fn[i32, u64, ptr[u8], i64, u64])


@native
def mount_root(task: ptr[Task]) -> void:
    """The first dentry is the root. It exists before any function that needs the current task runs."""
    task.root = addressof(task.dentries[0])
    root = d_alloc(null, addressof(root_name[0]), 1 << 32)
    d_instantiate(root, new_inode(S_IFDIR | 0o755))


@native
def fill_pattern(buf: ptr[u8], count: u64, seed: u32) -> void:
    for j in range(count):
        buf[j] = cast(u8, cast(u64, seed) + 7 * j + j // 8)


@native
def sys1(nr: u64, di: u64) -> i64:
    return do_syscall(nr, di, 0, 0, 0, 0, 0)


@native
def sys3(nr: u64, di: u64, si: u64, dx: u64) -> i64:
    return do_syscall(nr, di, si, dx, 0, 0, 0)


@native
def demo_read(fd: i64, buf: ptr[u8], count: u64, hash: u64) -> u64:
    """Reads up to 512 bytes: how many, and their checksum."""
    got = sys3(READ, cast(u64, fd), cast(u64, buf), count)
    checksum = csum_partial(buf, cast(u64, max(got, 0)), 0)
    return hash_64(hash_64(hash, cast(u64, got)), cast(u64, checksum))


@native
def demo_count(random: u32) -> u64:
    """How much a round writes: 1 to 700 bytes."""
    return cast(u64, (random >> 8) % 700 + 1)


@native
def demo_io(fd: i64, random: u32, buf: ptr[u8], written: ptr[i64]) -> u64:
    """lseek, write, fsync, lseek from the end, read."""
    file = cast(u64, fd)
    count = demo_count(random)
    offset = cast(u64, (random >> 20) % 4200)
    fill_pattern(buf, count, random)
    hash = hash_64(0, cast(u64, sys3(LSEEK, file, offset, SEEK_SET)))
    written[0] = sys3(WRITE, file, cast(u64, buf), count)
    hash = hash_64(hash, cast(u64, written[0]))
    hash = hash_64(hash, cast(u64, sys1(FSYNC, file)))
    hash = hash_64(hash, cast(u64, sys3(LSEEK, file, cast(u64, -300), SEEK_END)))
    return demo_read(fd, buf, PAGE_SIZE, hash)


@native
def demo_errors(buf: ptr[u8]) -> u64:
    """What must fail, each with its own error; then a hundred zeroes."""
    home = cast(u64, addressof(path_home))
    create: u64 = O_RDWR | O_CREAT
    hash = hash_64(0, cast(u64, sys3(OPEN, cast(u64, addressof(path_missing)), create, 0o644)))
    hash = hash_64(hash, cast(u64, sys3(OPEN, cast(u64, addressof(path_below_file)), create, 0o644)))
    hash = hash_64(hash, cast(u64, sys3(OPEN, cast(u64, addressof(path_too_long)), create, 0o644)))
    hash = hash_64(hash, cast(u64, sys3(OPEN, home, O_RDWR, 0)))
    hash = hash_64(hash, cast(u64, sys1(UNLINK, home)))
    hash = hash_64(hash, cast(u64, sys1(CLOSE, NO_SUCH_FD)))
    hash = hash_64(hash, cast(u64, sys1(NO_SUCH_CALL, 0)))
    fd = sys3(OPEN, cast(u64, addressof(path_dev_zero)), 0, 0)
    hash = demo_read(fd, buf, 100, hash)
    return hash_64(hash, cast(u64, sys1(CLOSE, cast(u64, fd))))


@native
def demo_flags(round: u64) -> u64:
    """To be read, written and made; every fifth round truncated, every third appended to."""
    flags: u64 = O_RDWR | O_CREAT
    if round % 5 == 0:
        flags |= O_TRUNC
    if round % 3 == 0:
        flags |= O_APPEND
    return flags


@native
def demo_events(round: u64, buf: ptr[u8]) -> u64:
    """A tick every fourth round; what must fail every eighth."""
    if round % 4 == 0:
        asm_sysvec_apic_timer_interrupt()
    return demo_errors(buf) if round % 8 == 7 else 0


@native
def demo_unlink(round: u64, path: u64, still_open: bool_) -> i64:
    """Unlinks in odd rounds, and in every sixth of them while the file is still open."""
    wanted = round % 6 == 1 if still_open else round % 2 == 1
    return sys1(UNLINK, path) if wanted else 1


@native
def demo_round(round: u64, state: ptr[u64], buf: ptr[u8]) -> u64:
    """One round: open, write, read, fsync, stat, mmap, close, unlink."""
    path: array[u8, OBJECT_SIZE] = zeroed
    written: i64 = 0
    random = prandom_u32_state(state)
    demo_path(addressof(path[0]), round, random)
    flags = demo_flags(round)
    name = cast(u64, addressof(path))
    hash = demo_events(round, buf)
    fd = sys3(OPEN, name, flags, 0o644)
    file = cast(u64, fd)
    hash = hash_64(hash, file)
    hash = hash_64(hash, demo_io(fd, random, buf, addressof(written)))
    hash = hash_64(hash, cast(u64, demo_unlink(round, name, True)))
    hash = hash_64(hash, demo_stat(fd))
    count = demo_count(random)
    offset = round % PAGES_PER_FILE * PAGE_SIZE
    hash = hash_64(hash, cast(u64, do_syscall(MMAP, 0, count, PROT_READ_WRITE, MAP_SHARED, file, offset)))
    hash = hash_64(hash, cast(u64, sys1(CLOSE, file)))
    hash = hash_64(hash, cast(u64, demo_unlink(round, name, False)))
    hash = hash_64(hash, cast(u64, sys1(SCHED_YIELD, 0)))
    return hash_64(hash, cast(u64, demo_log(round, addressof(path[0]), written, count)))


@native
def demo_summary(task: ptr[Task], hash: u64) -> u64:
    """What is left behind.

    Free blocks and inodes, blocks in use (counted by walking the tree), what was written out, the mappings, the log,
    the load average's bits, the switches.
    """
    statfs: Kstatfs = zeroed
    fd = cast(u64, sys3(OPEN, cast(u64, addressof(root_name)), 0, 0))
    sys3(FSTATFS, fd, cast(u64, addressof(statfs)), 0)
    sys1(CLOSE, fd)
    hash = hash_64(hash, statfs.f_bfree)
    hash = hash_64(hash, statfs.f_ffree)
    hash = hash_64(hash, simple_du(task.root))
    hash = hash_64(hash, task.nr_written)
    hash = hash_64(hash, task.disk_sum)
    hash = hash_64(hash, task.nr_populated)
    hash = hash_64(hash, cast(u64, csum_partial(addressof(task.log_buf[0]), LOG_SIZE, 0)))
    hash = hash_64(hash, task.load)
    return hash_64(hash, cast(u64, task.rq.nr_switches))


@native
def demo_run(task: ptr[Task], n: i64) -> u64:
    """All rounds, then the summary. Its frame holds the buffer."""
    state: u64 = GOLDEN_RATIO
    buf: array[u8, 1024] = zeroed
    hash: u64 = 0
    for round in range(n):
        hash = hash_64(hash, demo_round(cast(u64, round), addressof(state), addressof(buf[0])))
    return demo_summary(task, hash)


@native
def demo_main(n: i64) -> u64:
    """n rounds (none if n <= 0) in a file system of its own; the checksum depends on n alone.

    Any number of threads may call it at once: 15 run, the others wait. A signal handler may call it too.
    """
    previous = current_nr()
    nr = copy_process(previous)
    task = addressof(tasks[nr])
    start_kernel(task)
    checksum = demo_run(task, n)
    do_exit(nr, previous)
    return checksum
