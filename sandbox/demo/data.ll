; What all the IR files of the demo share: attributes, intrinsics, and the data symbols. The structs are those of
; structures.py, where the fields have names; here a field is addressed by its number, in the order there, from 0 on.

; ---------------------------------------------------------------------------------------------
; Attributes: every function here can be probed

attributes #0 = { noinline nounwind uwtable "no-builtins" }

declare i64 @llvm.umax.i64(i64, i64)
declare i32 @llvm.vector.reduce.add.v4i32(<4 x i32>)
declare void @llvm.va_start.p0(ptr)
declare void @llvm.va_end.p0(ptr)

; The one struct that is passed by value in memory, which the native language cannot do
%Kstat = type {
  i64,                       ; 0 ino
  i64,                       ; 1 size, in bytes
  i64,                       ; 2 blocks, of 512 bytes, holes not counted
  i32,                       ; 3 mode
  i32,                       ; 4 nlink
  %Timespec64                ; 5 mtime
}

; ---------------------------------------------------------------------------------------------
; Data symbols

; Process-wide counters, changed by atomic instructions only.
@jiffies = global i64 0, align 64
@nr_files = global i64 0, align 64

; As in a kernel, a pointer: `+0(@saved_command_line):string` is the text.
@saved_command_line = global ptr @boot_command_line
@boot_command_line = global [44 x i8] c"BOOT_IMAGE=/boot/vfs root=/dev/ram0 ro demo\00"
@linux_banner = constant [49 x i8] c"fprobe demo version 1.0 (an in-memory filesystem)"

; See structures.py.
@task_owner = global [16 x i64] zeroinitializer, align 64
@tasks = global [16 x %Task] zeroinitializer, align 64

@ramfs_dir_inode_operations = constant %InodeOperations {
  ptr @ramfs_create, ptr @ramfs_mkdir, ptr @simple_unlink
}
@ramfs_dir_operations = constant %FileOperations {
  ptr @noop_llseek, ptr @generic_read_dir, ptr @dir_write, ptr @noop_fsync
}
@ramfs_file_operations = constant %FileOperations {
  ptr @generic_file_llseek, ptr @generic_file_read, ptr @generic_file_write, ptr @generic_file_fsync
}
@zero_fops = constant %FileOperations {
  ptr @noop_llseek, ptr @read_zero, ptr @write_null, ptr @noop_fsync
}

@sys_call_table = constant [12 x ptr] [
  ptr @__x64_sys_read,       ; 0 fd, buf, count
  ptr @__x64_sys_write,      ; 1 fd, buf, count
  ptr @__x64_sys_open,       ; 2 filename, flags, mode
  ptr @__x64_sys_close,      ; 3 fd
  ptr @__x64_sys_newfstat,   ; 4 fd, statbuf
  ptr @__x64_sys_lseek,      ; 5 fd, offset, whence
  ptr @__x64_sys_mmap,       ; 6 addr, len, prot, flags, fd, off
  ptr @__x64_sys_fsync,      ; 7 fd
  ptr @__x64_sys_unlink,     ; 8 pathname
  ptr @__x64_sys_fstatfs,    ; 9 fd, buf
  ptr @__x64_sys_sched_yield,; 10
  ptr @sys_ni_syscall        ; 11 and everything above
]
