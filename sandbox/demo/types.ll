; The demo program: a small in-memory file system in the shape of a kernel's.
;
; This file: the types (with the meaning of each field), the attributes, and the data symbols.
; Reading aid for the other files: a field is addressed by its number, as listed here.

source_filename = "vfs.ll"
target triple = "x86_64-unknown-linux-gnu"

; ---------------------------------------------------------------------------------------------
; Types

%struct.timespec64 = type {
  i64,                       ; 0 tv_sec
  i64                        ; 1 tv_nsec
}

%struct.kstat = type {
  i64,                       ; 0 ino
  i64,                       ; 1 size, in bytes
  i64,                       ; 2 blocks, of 512 bytes, holes not counted
  i32,                       ; 3 mode
  i32,                       ; 4 nlink
  %struct.timespec64         ; 5 mtime
}

%struct.kstatfs = type {
  i64,                       ; 0 f_type
  i64,                       ; 1 f_bsize
  i64,                       ; 2 f_blocks
  i64,                       ; 3 f_bfree
  i64,                       ; 4 f_files
  i64                        ; 5 f_ffree
}

%struct.file_operations = type {
  ptr,                       ; 0 llseek  i64 (file, offset, whence)
  ptr,                       ; 1 read    i64 (file, buf, count, pos)
  ptr,                       ; 2 write   i64 (file, buf, count, pos)
  ptr                        ; 3 fsync   i32 (file, start, end, datasync)
}

%struct.inode_operations = type {
  ptr,                       ; 0 create  i32 (dir, dentry, mode)
  ptr,                       ; 1 mkdir   i32 (dir, dentry, mode)
  ptr                        ; 2 unlink  i32 (dir, dentry)
}

%struct.inode = type {
  i64,                       ; 0 i_ino
  i64,                       ; 1 i_size
  i32,                       ; 2 i_mode
  i32,                       ; 3 i_nlink
  i32,                       ; 4 i_count
  i32,                       ; 5 i_dirty: bit n is page n
  ptr,                       ; 6 i_op, null for what is not a directory
  ptr,                       ; 7 i_fop
  %struct.timespec64,        ; 8 i_mtime
  [8 x i32]                  ; 9 i_pages: page frame + 1, 0 for a hole
}

%struct.dentry = type {
  ptr,                       ; 0 d_parent, holds a reference; null for the root
  ptr,                       ; 1 d_inode, null while negative
  ptr,                       ; 2 d_subdirs: first child
  ptr,                       ; 3 d_child: next sibling
  i64,                       ; 4 d_hash_len: length << 32 | hash
  i32,                       ; 5 d_count
  [32 x i8]                  ; 6 d_name, ends with NUL
}

%struct.file = type {
  ptr,                       ; 0 f_op
  ptr,                       ; 1 f_dentry
  ptr,                       ; 2 f_inode
  i64,                       ; 3 f_pos
  i32,                       ; 4 f_flags
  i32                        ; 5 f_count
}

%struct.nameidata = type {
  ptr,                       ; 0 directory reached so far
  ptr,                       ; 1 last component
  i64                        ; 2 its hash_len
}

%struct.open_flags = type {
  i32,                       ; 0 flags: 1 O_WRONLY, 2 O_RDWR, 64 O_CREAT, 512 O_TRUNC, 1024 O_APPEND
  i32                        ; 1 mode
}

%struct.seq_file = type {
  ptr,                       ; 0 buf
  i64,                       ; 1 size
  i64                        ; 2 count
}

%struct.sched_entity = type {
  i64,                       ; 0 vruntime
  i64                        ; 1 weight
}

%struct.rq = type {
  i32,                       ; 0 curr
  i32,                       ; 1 nr_switches
  [4 x %struct.sched_entity] ; 2 entities
}

; Everything that one running demo owns. Nothing in it is shared with another one.
%struct.task_struct = type {
  i64,                       ;  0 map of page frames in use
  i64,                       ;  1 map of inodes in use
  i64,                       ;  2 map of dentries in use
  i64,                       ;  3 map of files in use
  i64,                       ;  4 map of kmalloc objects in use
  ptr,                       ;  5 root dentry
  i64,                       ;  6 ticks
  double,                    ;  7 load average
  i64,                       ;  8 mmap_base
  i32,                       ;  9 preempt_count
  i32,                       ; 10 disk_head: the page last written out
  i64,                       ; 11 nr_written: pages written out
  i64,                       ; 12 disk_sum: checksum over them, in order
  i64,                       ; 13 log_count: bytes ever logged
  %struct.rq,                ; 14 rq
  [16 x ptr],                ; 15 file descriptors
  [16 x %struct.file],       ; 16 files
  [32 x %struct.inode],      ; 17 inodes
  [32 x %struct.dentry],     ; 18 dentries
  [32 x [512 x i8]],         ; 19 page frames
  [32 x [64 x i8]],          ; 20 kmalloc objects
  [1024 x i8],               ; 21 log_buf, a ring
  i64                        ; 22 nr_populated: pages that mappings found resident
}

; ---------------------------------------------------------------------------------------------
; Attributes: #0 is every function that can be probed, #1 one that must not be.

attributes #0 = { noinline nounwind uwtable "no-builtins" }
attributes #1 = { noinline nounwind uwtable "no-builtins" "notrace" }

declare i64 @llvm.cttz.i64(i64, i1)
declare i64 @llvm.ctpop.i64(i64)
declare i64 @llvm.fshl.i64(i64, i64, i64)
declare i64 @llvm.umin.i64(i64, i64)
declare i64 @llvm.umax.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
declare i32 @llvm.vector.reduce.add.v4i32(<4 x i32>)
declare void @llvm.va_start.p0(ptr)
declare void @llvm.va_end.p0(ptr)
declare void @llvm.x86.sse2.pause()

; ---------------------------------------------------------------------------------------------
; Data symbols

; Process-wide counters, changed by atomic instructions only.
@jiffies = global i64 0, align 64
@nr_files = global i64 0, align 64

; As in a kernel, a pointer: `+0(@saved_command_line):string` is the text.
@saved_command_line = global ptr @boot_command_line
@boot_command_line = global [44 x i8] c"BOOT_IMAGE=/boot/vfs root=/dev/ram0 ro demo\00"
@linux_banner = constant [49 x i8] c"fprobe demo version 1.0 (an in-memory filesystem)"

; Task 0 belongs to whoever calls the functions directly; 1 to 15 are for demo_main.
; The owner of a task is the thread pointer of the thread that runs as it; 0: free; 1: that
; thread runs as another task for now.
@task_owner = global [16 x i64] zeroinitializer, align 64
@tasks = global [16 x %struct.task_struct] zeroinitializer, align 64

@ramfs_dir_inode_operations = constant %struct.inode_operations {
  ptr @ramfs_create, ptr @ramfs_mkdir, ptr @simple_unlink
}
@ramfs_dir_operations = constant %struct.file_operations {
  ptr @noop_llseek, ptr @generic_read_dir, ptr @dir_write, ptr @noop_fsync
}
@ramfs_file_operations = constant %struct.file_operations {
  ptr @generic_file_llseek, ptr @generic_file_read, ptr @generic_file_write, ptr @generic_file_fsync
}
@zero_fops = constant %struct.file_operations {
  ptr @noop_llseek, ptr @read_zero, ptr @write_null, ptr @noop_fsync
}
