"""The built-in demo program: a small in-memory file system in the shape of a kernel's.

About 160 functions in the files of this directory, most in the native language (docs/native.md), by theme. Functions that need
recursion, tail calls, structs by value, vectors, floating point or variable arguments are in LLVM IR. Both are parts of
one module. `demo_main(i64 n)` does n rounds of open, write, fsync, read, stat, mmap, close and unlink, with failures
among them, and returns a checksum that depends on n alone. It may be called by any number of threads at once, and from
signal handlers: every call has a task, with a file system, of its own (15 at a time; the others wait). Every other
function works on the task of the calling demo_main, or, called directly, on task 0, which all threads share: direct
calls need the caller's own locking.

========================  ==========================================================================================
what                      where
========================  ==========================================================================================
file system               do_sys_open, do_filp_open, vfs_open, vfs_read, vfs_write, vfs_fsync, vfs_llseek, vfs_create,
                          vfs_mkdir, vfs_unlink, vfs_getattr, vfs_statfs; dget, dput, d_lookup, iput, fput
memory                    kmalloc, kfree, alloc_page, free_page, do_mmap
scheduling                schedule, pick_next_task, update_curr, calc_load
interrupt-like entry      asm_sysvec_apic_timer_interrupt
recursion                 link_path_walk, simple_du, seq_put_decimal_ull
loops                     hash_name, csum_partial, generic_file_read, generic_file_write
indirect calls            do_syscall through sys_call_table; vfs_* through file_operations and inode_operations
more than six arguments   do_syscall (7), do_mmap (8)
floating point            calc_load, calc_global_load, seq_put_double
vectors                   mix_lanes (arguments and result), page_checksum, clear_page
structs by value          vfs_getattr (sret), cp_new_stat (byval), current_time and timespec64_sub (in registers)
varargs                   printk, scnprintf (int, string, double); vprintk, seq_vprintf take a va_list
tail calls                elv_scan_up and elv_scan_down (each other), copy_to_user, dput and dentry_kill (each other),
                          iput, fput; vfs_llseek and vfs_fsync_range (indirect)
other conventions         page_checksum is fastcc
notrace                   get_current, current_nr
errors                    -ENOENT, -EBADF, -ENOTDIR, -EISDIR, -EINVAL, -EFBIG, -ENOSPC, -ENAMETOOLONG, -ENOSYS occur
data symbols              jiffies, nr_files, saved_command_line, linux_banner, sys_call_table, tasks, task_owner
========================  ==========================================================================================

`nr_files` is back at its old value when demo_main returns; `jiffies` grows by a quarter of the rounds.
"""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path

from sandbox.native import NativeFunction, Unit

NAME = "demo"
"""The name of the module, as in [demo]."""

_NATIVE = ("lib", "mm", "sched", "dcache", "ramfs", "vfs", "syscall", "main")
_LLVM = ("data", "recursion", "tailcalls", "values", "vectors", "floats", "varargs")


def source() -> str:
    """The program as LLVM IR text, without stubs: what is native and what is not, in one module."""
    from sandbox.compile.cache import default_cache
    from sandbox.native.back.compile import unit_ir

    unit = Unit(NAME, native_functions(), bounded=False, llvm=_llvm())
    return unit_ir(unit, default_cache())


def names() -> list[str]:
    """The functions of the program, found without compiling anything."""
    from sandbox.native.back.module import functions_in

    return [*(function.name for function in native_functions()), *functions_in(_llvm())]


def native_functions() -> list[NativeFunction]:
    """The functions that are written in the native language, by file."""
    modules = [importlib.import_module(f"{__name__}.{name}") for name in _NATIVE]
    found = (value for module in modules for value in vars(module).values() if isinstance(value, NativeFunction))
    return list(dict.fromkeys(found))


@cache
def _llvm() -> str:
    here = Path(__file__).parent
    return "\n".join((here / f"{part}.ll").read_text("utf-8") for part in _LLVM)
