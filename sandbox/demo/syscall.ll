; syscall: file descriptors, the system calls, and their table

; ---------------------------------------------------------------------------------------------
; File descriptors: 0 to 15

; The lowest free descriptor, or -EMFILE.
define i32 @get_unused_fd_flags(i32 %flags) #0 {
entry:
  %task = call ptr @get_current()
  br label %head
head:
  %fd = phi i32 [ 0, %entry ], [ %fd.next, %next ]
  %more = icmp ult i32 %fd, 16
  br i1 %more, label %look, label %emfile
look:
  %slot = getelementptr %struct.task_struct, ptr %task, i32 0, i32 15, i32 %fd
  %file = load ptr, ptr %slot
  %free = icmp eq ptr %file, null
  br i1 %free, label %found, label %next
next:
  %fd.next = add i32 %fd, 1
  br label %head
found:
  ret i32 %fd
emfile:
  ret i32 -24
}

define void @fd_install(i32 %fd, ptr %file) #0 {
  %task = call ptr @get_current()
  %slot = getelementptr %struct.task_struct, ptr %task, i32 0, i32 15, i32 %fd
  store ptr %file, ptr %slot
  ret void
}

; The file of a descriptor, or null.
define ptr @fdget(i32 %fd) #0 {
  %valid = icmp ult i32 %fd, 16
  br i1 %valid, label %look, label %none
look:
  %task = call ptr @get_current()
  %slot = getelementptr %struct.task_struct, ptr %task, i32 0, i32 15, i32 %fd
  %file = load ptr, ptr %slot
  ret ptr %file
none:
  ret ptr null
}

; ---------------------------------------------------------------------------------------------
; The calls

; A descriptor, or a negative errno. filename is a string; for flags see struct open_flags.
define i64 @do_sys_open(i32 %dfd, ptr %filename, i32 %flags, i32 %mode) #0 {
  %op = alloca %struct.open_flags
  %mode.at = getelementptr %struct.open_flags, ptr %op, i32 0, i32 1
  store i32 %flags, ptr %op
  store i32 %mode, ptr %mode.at
  %name = call ptr @getname(ptr %filename)
  %bad.name = call i1 @is_err(ptr %name)
  br i1 %bad.name, label %no.name, label %descriptor
descriptor:
  %fd = call i32 @get_unused_fd_flags(i32 %flags)
  %fd.wide = sext i32 %fd to i64
  %none = icmp slt i32 %fd, 0
  br i1 %none, label %done, label %open
open:
  %file = call ptr @do_filp_open(i32 %dfd, ptr %name, ptr %op)
  %failed = call i1 @is_err(ptr %file)
  br i1 %failed, label %not.opened, label %install
install:
  call void @fd_install(i32 %fd, ptr %file)
  br label %done
not.opened:
  %file.error = ptrtoint ptr %file to i64
  br label %done
done:
  %result = phi i64 [ %fd.wide, %descriptor ], [ %fd.wide, %install ], [ %file.error, %not.opened ]
  call void @putname(ptr %name)
  ret i64 %result
no.name:
  %name.error = ptrtoint ptr %name to i64
  ret i64 %name.error
}

define i64 @ksys_read(i32 %fd, ptr %buf, i64 %count) #0 {
  %file = call ptr @fdget(i32 %fd)
  %none = icmp eq ptr %file, null
  br i1 %none, label %ebadf, label %read
read:
  %pos.at = getelementptr %struct.file, ptr %file, i32 0, i32 3
  %got = call i64 @vfs_read(ptr %file, ptr %buf, i64 %count, ptr %pos.at)
  ret i64 %got
ebadf:
  ret i64 -9
}

define i64 @ksys_write(i32 %fd, ptr %buf, i64 %count) #0 {
  %file = call ptr @fdget(i32 %fd)
  %none = icmp eq ptr %file, null
  br i1 %none, label %ebadf, label %write
write:
  %pos.at = getelementptr %struct.file, ptr %file, i32 0, i32 3
  %put = call i64 @vfs_write(ptr %file, ptr %buf, i64 %count, ptr %pos.at)
  ret i64 %put
ebadf:
  ret i64 -9
}

define i32 @close_fd(i32 %fd) #0 {
  %file = call ptr @fdget(i32 %fd)
  %none = icmp eq ptr %file, null
  br i1 %none, label %ebadf, label %close
close:
  call void @fd_install(i32 %fd, ptr null)
  %error = call i32 @filp_close(ptr %file)
  ret i32 %error
ebadf:
  ret i32 -9
}

; The address of a new mapping of a file; see do_mmap.
define i64 @ksys_mmap(i64 %addr, i64 %len, i64 %prot, i64 %flags, i32 %fd, i64 %pgoff) #0 {
  %populate = alloca i64
  store i64 0, ptr %populate
  %file = call ptr @fdget(i32 %fd)
  %none = icmp eq ptr %file, null
  br i1 %none, label %ebadf, label %map
map:
  %where = call i64 @do_mmap(ptr %file, i64 %addr, i64 %len, i64 %prot, i64 %flags, i64 0, i64 %pgoff, ptr %populate)
  %task = call ptr @get_current()
  %populated.at = getelementptr %struct.task_struct, ptr %task, i32 0, i32 22
  %before = load i64, ptr %populated.at
  %more = load i64, ptr %populate
  %now = add i64 %before, %more
  store i64 %now, ptr %populated.at
  ret i64 %where
ebadf:
  ret i64 -9
}

; ---------------------------------------------------------------------------------------------
; From the registers of a caller to the calls: regs is six i64

define i64 @__x64_sys_read(ptr %regs) #0 {
  %buf.at = getelementptr i64, ptr %regs, i32 1
  %count.at = getelementptr i64, ptr %regs, i32 2
  %fd = load i32, ptr %regs
  %buf = load ptr, ptr %buf.at
  %count = load i64, ptr %count.at
  %got = call i64 @ksys_read(i32 %fd, ptr %buf, i64 %count)
  ret i64 %got
}

define i64 @__x64_sys_write(ptr %regs) #0 {
  %buf.at = getelementptr i64, ptr %regs, i32 1
  %count.at = getelementptr i64, ptr %regs, i32 2
  %fd = load i32, ptr %regs
  %buf = load ptr, ptr %buf.at
  %count = load i64, ptr %count.at
  %put = call i64 @ksys_write(i32 %fd, ptr %buf, i64 %count)
  ret i64 %put
}

define i64 @__x64_sys_open(ptr %regs) #0 {
  %flags.at = getelementptr i64, ptr %regs, i32 1
  %mode.at = getelementptr i64, ptr %regs, i32 2
  %filename = load ptr, ptr %regs
  %flags = load i32, ptr %flags.at
  %mode = load i32, ptr %mode.at
  %fd = call i64 @do_sys_open(i32 -100, ptr %filename, i32 %flags, i32 %mode)
  ret i64 %fd
}

define i64 @__x64_sys_close(ptr %regs) #0 {
  %fd = load i32, ptr %regs
  %error = call i32 @close_fd(i32 %fd)
  %wide = sext i32 %error to i64
  ret i64 %wide
}

define i64 @__x64_sys_newfstat(ptr %regs) #0 {
  %stat = alloca %struct.kstat
  %statbuf.at = getelementptr i64, ptr %regs, i32 1
  %fd = load i32, ptr %regs
  %statbuf = load ptr, ptr %statbuf.at
  %file = call ptr @fdget(i32 %fd)
  %none = icmp eq ptr %file, null
  br i1 %none, label %ebadf, label %getattr
getattr:
  %dentry.at = getelementptr %struct.file, ptr %file, i32 0, i32 1
  %dentry = load ptr, ptr %dentry.at
  call void @vfs_getattr(ptr sret(%struct.kstat) %stat, ptr %dentry)
  %error = call i32 @cp_new_stat(ptr byval(%struct.kstat) align 8 %stat, ptr %statbuf)
  %wide = sext i32 %error to i64
  ret i64 %wide
ebadf:
  ret i64 -9
}

define i64 @__x64_sys_lseek(ptr %regs) #0 {
  %offset.at = getelementptr i64, ptr %regs, i32 1
  %whence.at = getelementptr i64, ptr %regs, i32 2
  %fd = load i32, ptr %regs
  %offset = load i64, ptr %offset.at
  %whence = load i32, ptr %whence.at
  %file = call ptr @fdget(i32 %fd)
  %none = icmp eq ptr %file, null
  br i1 %none, label %ebadf, label %seek
seek:
  %pos = call i64 @vfs_llseek(ptr %file, i64 %offset, i32 %whence)
  ret i64 %pos
ebadf:
  ret i64 -9
}

define i64 @__x64_sys_mmap(ptr %regs) #0 {
  %len.at = getelementptr i64, ptr %regs, i32 1
  %prot.at = getelementptr i64, ptr %regs, i32 2
  %flags.at = getelementptr i64, ptr %regs, i32 3
  %fd.at = getelementptr i64, ptr %regs, i32 4
  %off.at = getelementptr i64, ptr %regs, i32 5
  %addr = load i64, ptr %regs
  %len = load i64, ptr %len.at
  %prot = load i64, ptr %prot.at
  %flags = load i64, ptr %flags.at
  %fd = load i32, ptr %fd.at
  %off = load i64, ptr %off.at
  %pgoff = lshr i64 %off, 9
  %where = call i64 @ksys_mmap(i64 %addr, i64 %len, i64 %prot, i64 %flags, i32 %fd, i64 %pgoff)
  ret i64 %where
}

define i64 @__x64_sys_fsync(ptr %regs) #0 {
  %fd = load i32, ptr %regs
  %file = call ptr @fdget(i32 %fd)
  %none = icmp eq ptr %file, null
  br i1 %none, label %ebadf, label %sync
sync:
  %error = call i32 @vfs_fsync(ptr %file, i32 0)
  %wide = sext i32 %error to i64
  ret i64 %wide
ebadf:
  ret i64 -9
}

define i64 @__x64_sys_unlink(ptr %regs) #0 {
  %pathname = load ptr, ptr %regs
  %name = call ptr @getname(ptr %pathname)
  %bad.name = call i1 @is_err(ptr %name)
  br i1 %bad.name, label %no.name, label %unlink
unlink:
  %error = call i32 @do_unlinkat(i32 -100, ptr %name)
  call void @putname(ptr %name)
  %wide = sext i32 %error to i64
  ret i64 %wide
no.name:
  %name.error = ptrtoint ptr %name to i64
  ret i64 %name.error
}

define i64 @__x64_sys_fstatfs(ptr %regs) #0 {
  %buf.at = getelementptr i64, ptr %regs, i32 1
  %fd = load i32, ptr %regs
  %buf = load ptr, ptr %buf.at
  %file = call ptr @fdget(i32 %fd)
  %none = icmp eq ptr %file, null
  br i1 %none, label %ebadf, label %statfs
statfs:
  %dentry.at = getelementptr %struct.file, ptr %file, i32 0, i32 1
  %dentry = load ptr, ptr %dentry.at
  %error = call i32 @vfs_statfs(ptr %dentry, ptr %buf)
  %wide = sext i32 %error to i64
  ret i64 %wide
ebadf:
  ret i64 -9
}

define i64 @__x64_sys_sched_yield(ptr %regs) #0 {
  %curr = call i32 @schedule()
  %wide = sext i32 %curr to i64
  ret i64 %wide
}

define i64 @sys_ni_syscall(ptr %regs) #0 {
  ret i64 -38
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

; Seven arguments: the last travels on the stack.
define i64 @do_syscall(i64 %nr, i64 %di, i64 %si, i64 %dx, i64 %r10, i64 %r8, i64 %r9) #0 {
  %regs = alloca [6 x i64], align 16
  %si.at = getelementptr [6 x i64], ptr %regs, i32 0, i32 1
  %dx.at = getelementptr [6 x i64], ptr %regs, i32 0, i32 2
  %r10.at = getelementptr [6 x i64], ptr %regs, i32 0, i32 3
  %r8.at = getelementptr [6 x i64], ptr %regs, i32 0, i32 4
  %r9.at = getelementptr [6 x i64], ptr %regs, i32 0, i32 5
  store i64 %di, ptr %regs
  store i64 %si, ptr %si.at
  store i64 %dx, ptr %dx.at
  store i64 %r10, ptr %r10.at
  store i64 %r8, ptr %r8.at
  store i64 %r9, ptr %r9.at
  %slot = call i64 @llvm.umin.i64(i64 %nr, i64 11)
  %entry.at = getelementptr [12 x ptr], ptr @sys_call_table, i64 0, i64 %slot
  %call = load ptr, ptr %entry.at
  %result = call i64 %call(ptr %regs)
  ret i64 %result
}
