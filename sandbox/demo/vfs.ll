; vfs: what is the same for every file system. Errors are negative errno values; a function that
; returns a pointer returns them as one (the last 4095 addresses).

define i1 @is_err(ptr %pointer) #0 {
  %address = ptrtoint ptr %pointer to i64
  %error = icmp ugt i64 %address, -4096
  ret i1 %error
}

; ---------------------------------------------------------------------------------------------
; Names from outside

; A copy of a path of 1 to 63 bytes, or -ENOENT, -ENAMETOOLONG, -ENOMEM.
define ptr @getname(ptr %filename) #0 {
  %name = call ptr @kmalloc(i64 64, i32 0)
  %full = icmp eq ptr %name, null
  br i1 %full, label %enomem, label %copy
copy:
  %len = call i64 @strncpy_from_user(ptr %name, ptr %filename, i64 64)
  %good = icmp sgt i64 %len, 0
  br i1 %good, label %done, label %bad
done:
  ret ptr %name
bad:
  call void @kfree(ptr %name)
  %empty = icmp eq i64 %len, 0
  %error = select i1 %empty, i64 -2, i64 %len
  %error.pointer = getelementptr i8, ptr null, i64 %error
  ret ptr %error.pointer
enomem:
  %enomem.pointer = getelementptr i8, ptr null, i64 -12
  ret ptr %enomem.pointer
}

define void @putname(ptr %name) #0 {
  musttail call void @kfree(ptr %name)
  ret void
}

; ---------------------------------------------------------------------------------------------
; Open files

define ptr @alloc_empty_file(i32 %flags) #0 {
  %task = call ptr @get_current()
  %map = getelementptr %struct.task_struct, ptr %task, i32 0, i32 3
  %nr = call i32 @alloc_bit(ptr %map)
  %full = icmp slt i32 %nr, 0
  br i1 %full, label %none, label %fill
fill:
  %file = getelementptr %struct.task_struct, ptr %task, i32 0, i32 16, i32 %nr
  %flags.at = getelementptr %struct.file, ptr %file, i32 0, i32 4
  %count.at = getelementptr %struct.file, ptr %file, i32 0, i32 5
  store %struct.file zeroinitializer, ptr %file
  store i32 %flags, ptr %flags.at
  store i32 1, ptr %count.at
  %before = atomicrmw add ptr @nr_files, i64 1 monotonic
  ret ptr %file
none:
  ret ptr null
}

define void @fput(ptr %file) #0 {
  %count.at = getelementptr %struct.file, ptr %file, i32 0, i32 5
  %count = load i32, ptr %count.at
  %less = sub i32 %count, 1
  store i32 %less, ptr %count.at
  %last = icmp eq i32 %less, 0
  br i1 %last, label %final, label %done
final:
  musttail call void @__fput(ptr %file)
  ret void
done:
  ret void
}

define void @__fput(ptr %file) #0 {
  %dentry.at = getelementptr %struct.file, ptr %file, i32 0, i32 1
  %dentry = load ptr, ptr %dentry.at
  call void @dput(ptr %dentry)
  call void @file_free(ptr %file)
  ret void
}

define void @file_free(ptr %file) #0 {
  %task = call ptr @get_current()
  %map = getelementptr %struct.task_struct, ptr %task, i32 0, i32 3
  %first = getelementptr %struct.task_struct, ptr %task, i32 0, i32 16
  %address = ptrtoint ptr %file to i64
  %base = ptrtoint ptr %first to i64
  %offset = sub i64 %address, %base
  %end = getelementptr %struct.file, ptr null, i32 1
  %size = ptrtoint ptr %end to i64
  %nr = udiv i64 %offset, %size
  call void @clear_bit(i64 %nr, ptr %map)
  %before = atomicrmw sub ptr @nr_files, i64 1 monotonic
  ret void
}

define i32 @filp_close(ptr %file) #0 {
  call void @fput(ptr %file)
  ret i32 0
}

; ---------------------------------------------------------------------------------------------
; Opening

define i32 @vfs_create(ptr %dir, ptr %dentry, i32 %mode, i1 %want_excl) #0 {
  %op.at = getelementptr %struct.inode, ptr %dir, i32 0, i32 6
  %op = load ptr, ptr %op.at
  %create = load ptr, ptr %op
  %error = call i32 %create(ptr %dir, ptr %dentry, i32 %mode)
  ret i32 %error
}

define i32 @vfs_mkdir(ptr %dir, ptr %dentry, i32 %mode) #0 {
  %op.at = getelementptr %struct.inode, ptr %dir, i32 0, i32 6
  %op = load ptr, ptr %op.at
  %mkdir.at = getelementptr %struct.inode_operations, ptr %op, i32 0, i32 1
  %mkdir = load ptr, ptr %mkdir.at
  %error = musttail call i32 %mkdir(ptr %dir, ptr %dentry, i32 %mode)
  ret i32 %error
}

; Makes what nd names: a directory if mode says so, else a file; its dentry, or -ENOSPC.
define ptr @lookup_create(ptr %nd, i32 %mode) #0 {
entry:
  %dir = load ptr, ptr %nd
  %name.at = getelementptr %struct.nameidata, ptr %nd, i32 0, i32 1
  %hash.at = getelementptr %struct.nameidata, ptr %nd, i32 0, i32 2
  %name = load ptr, ptr %name.at
  %hash.len = load i64, ptr %hash.at
  %dentry = call ptr @d_alloc(ptr %dir, ptr %name, i64 %hash.len)
  %full = icmp eq ptr %dentry, null
  br i1 %full, label %enospc, label %make
make:
  %inode.at = getelementptr %struct.dentry, ptr %dir, i32 0, i32 1
  %inode = load ptr, ptr %inode.at
  %format = and i32 %mode, 61440
  %is.dir = icmp eq i32 %format, 16384
  br i1 %is.dir, label %directory, label %plain
directory:
  %mkdir.error = call i32 @vfs_mkdir(ptr %inode, ptr %dentry, i32 %mode)
  br label %check
plain:
  %create.error = call i32 @vfs_create(ptr %inode, ptr %dentry, i32 %mode, i1 false)
  br label %check
check:
  %error = phi i32 [ %mkdir.error, %directory ], [ %create.error, %plain ]
  %failed = icmp slt i32 %error, 0
  br i1 %failed, label %undo, label %done
done:
  ret ptr %dentry
undo:
  call void @dput(ptr %dentry)
  br label %enospc
enospc:
  %enospc.pointer = getelementptr i8, ptr null, i64 -28
  ret ptr %enospc.pointer
}

; Ties a file to its inode; with O_TRUNC (and leave to write) the file is emptied.
define i32 @vfs_open(ptr %dentry, ptr %file) #0 {
  %file.op.at = getelementptr %struct.file, ptr %file, i32 0, i32 0
  %file.dentry.at = getelementptr %struct.file, ptr %file, i32 0, i32 1
  %file.inode.at = getelementptr %struct.file, ptr %file, i32 0, i32 2
  %flags.at = getelementptr %struct.file, ptr %file, i32 0, i32 4
  %inode.at = getelementptr %struct.dentry, ptr %dentry, i32 0, i32 1
  %inode = load ptr, ptr %inode.at
  %fop.at = getelementptr %struct.inode, ptr %inode, i32 0, i32 7
  %fop = load ptr, ptr %fop.at
  %held = call ptr @dget(ptr %dentry)
  store ptr %fop, ptr %file.op.at
  store ptr %held, ptr %file.dentry.at
  store ptr %inode, ptr %file.inode.at
  %flags = load i32, ptr %flags.at
  %trunc = and i32 %flags, 512
  %access = and i32 %flags, 3
  %asked = icmp ne i32 %trunc, 0
  %writes = icmp ne i32 %access, 0
  %truncates = and i1 %asked, %writes
  br i1 %truncates, label %truncate, label %done
truncate:
  call void @truncate_inode_pages(ptr %inode)
  br label %done
done:
  ret i32 0
}

; A file on a dentry, or -EISDIR (a directory to be written), -ENFILE.
define ptr @do_open(ptr %dentry, i32 %flags) #0 {
  %inode.at = getelementptr %struct.dentry, ptr %dentry, i32 0, i32 1
  %inode = load ptr, ptr %inode.at
  %is.dir = call i1 @s_isdir(ptr %inode)
  %access = and i32 %flags, 3
  %writes = icmp ne i32 %access, 0
  %refused = and i1 %is.dir, %writes
  br i1 %refused, label %eisdir, label %allocate
allocate:
  %file = call ptr @alloc_empty_file(i32 %flags)
  %none = icmp eq ptr %file, null
  br i1 %none, label %enfile, label %open
open:
  %error = call i32 @vfs_open(ptr %dentry, ptr %file)
  ret ptr %file
eisdir:
  %eisdir.pointer = getelementptr i8, ptr null, i64 -21
  ret ptr %eisdir.pointer
enfile:
  %enfile.pointer = getelementptr i8, ptr null, i64 -23
  ret ptr %enfile.pointer
}

; Finds or makes the dentry that nd names, as the flags say; or an error.
define ptr @lookup_open(ptr %nd, ptr %op) #0 {
  %found = call ptr @lookup_last(ptr %nd)
  %missing = icmp eq ptr %found, null
  br i1 %missing, label %absent, label %done
done:
  ret ptr %found
absent:
  %flags = load i32, ptr %op
  %creat = and i32 %flags, 64
  %creates = icmp ne i32 %creat, 0
  br i1 %creates, label %create, label %enoent
create:
  %mode.at = getelementptr %struct.open_flags, ptr %op, i32 0, i32 1
  %mode = load i32, ptr %mode.at
  %permissions = and i32 %mode, 4095
  %made = call ptr @lookup_create(ptr %nd, i32 %permissions)
  ret ptr %made
enoent:
  %enoent.pointer = getelementptr i8, ptr null, i64 -2
  ret ptr %enoent.pointer
}

; dfd is not used: every path is taken from the root.
define ptr @do_filp_open(i32 %dfd, ptr %pathname, ptr %op) #0 {
  %nd = alloca %struct.nameidata
  %error = call i32 @path_parentat(ptr %pathname, ptr %nd)
  %failed = icmp slt i32 %error, 0
  br i1 %failed, label %no.path, label %last
last:
  %dir = load ptr, ptr %nd
  %dentry = call ptr @lookup_open(ptr %nd, ptr %op)
  call void @dput(ptr %dir)
  %no.dentry = call i1 @is_err(ptr %dentry)
  br i1 %no.dentry, label %no.name, label %open
open:
  %flags = load i32, ptr %op
  %file = call ptr @do_open(ptr %dentry, i32 %flags)
  call void @dput(ptr %dentry)
  ret ptr %file
no.name:
  ret ptr %dentry
no.path:
  %wide = sext i32 %error to i64
  %error.pointer = getelementptr i8, ptr null, i64 %wide
  ret ptr %error.pointer
}

; Makes a directory (mode has the format of one), device or file; 0 or an error. An existing
; name is left as it is.
define i32 @do_mknodat(i32 %dfd, ptr %name, i32 %mode) #0 {
  %nd = alloca %struct.nameidata
  %error = call i32 @path_parentat(ptr %name, ptr %nd)
  %failed = icmp slt i32 %error, 0
  br i1 %failed, label %no.path, label %last
last:
  %dir = load ptr, ptr %nd
  %found = call ptr @lookup_last(ptr %nd)
  %missing = icmp eq ptr %found, null
  br i1 %missing, label %make, label %exists
make:
  %made = call ptr @lookup_create(ptr %nd, i32 %mode)
  call void @dput(ptr %dir)
  %bad = call i1 @is_err(ptr %made)
  br i1 %bad, label %not.made, label %done
done:
  call void @dput(ptr %made)
  ret i32 0
exists:
  call void @dput(ptr %found)
  call void @dput(ptr %dir)
  ret i32 -17
not.made:
  %value = ptrtoint ptr %made to i64
  %made.error = trunc i64 %value to i32
  ret i32 %made.error
no.path:
  ret i32 %error
}

; ---------------------------------------------------------------------------------------------
; Reading, writing, and the rest

define i64 @vfs_llseek(ptr %file, i64 %offset, i32 %whence) #0 {
  %op = load ptr, ptr %file
  %llseek = load ptr, ptr %op
  %pos = musttail call i64 %llseek(ptr %file, i64 %offset, i32 %whence)
  ret i64 %pos
}

; Bytes read into buf from *pos on, which moves; or -EBADF (opened to write only), -EISDIR.
define i64 @vfs_read(ptr %file, ptr %buf, i64 %count, ptr %pos) #0 {
  %flags.at = getelementptr %struct.file, ptr %file, i32 0, i32 4
  %flags = load i32, ptr %flags.at
  %access = and i32 %flags, 3
  %write.only = icmp eq i32 %access, 1
  br i1 %write.only, label %ebadf, label %read
read:
  %op = load ptr, ptr %file
  %read.at = getelementptr %struct.file_operations, ptr %op, i32 0, i32 1
  %method = load ptr, ptr %read.at
  %got = call i64 %method(ptr %file, ptr %buf, i64 %count, ptr %pos)
  ret i64 %got
ebadf:
  ret i64 -9
}

; Bytes written from buf at *pos, which moves; or -EBADF (opened to read only), -EFBIG, -ENOSPC.
define i64 @vfs_write(ptr %file, ptr %buf, i64 %count, ptr %pos) #0 {
  %flags.at = getelementptr %struct.file, ptr %file, i32 0, i32 4
  %flags = load i32, ptr %flags.at
  %access = and i32 %flags, 3
  %read.only = icmp eq i32 %access, 0
  br i1 %read.only, label %ebadf, label %write
write:
  %op = load ptr, ptr %file
  %write.at = getelementptr %struct.file_operations, ptr %op, i32 0, i32 2
  %method = load ptr, ptr %write.at
  %put = call i64 %method(ptr %file, ptr %buf, i64 %count, ptr %pos)
  ret i64 %put
ebadf:
  ret i64 -9
}

define i32 @vfs_fsync_range(ptr %file, i64 %start, i64 %end, i32 %datasync) #0 {
  %op = load ptr, ptr %file
  %fsync.at = getelementptr %struct.file_operations, ptr %op, i32 0, i32 3
  %fsync = load ptr, ptr %fsync.at
  %error = musttail call i32 %fsync(ptr %file, i64 %start, i64 %end, i32 %datasync)
  ret i32 %error
}

define i32 @vfs_fsync(ptr %file, i32 %datasync) #0 {
  %error = call i32 @vfs_fsync_range(ptr %file, i64 0, i64 9223372036854775807, i32 %datasync)
  ret i32 %error
}

; A struct as the result, through memory of the caller's.
define void @vfs_getattr(ptr sret(%struct.kstat) %stat, ptr %dentry) #0 {
  %inode.at = getelementptr %struct.dentry, ptr %dentry, i32 0, i32 1
  %inode = load ptr, ptr %inode.at
  %size.at = getelementptr %struct.inode, ptr %inode, i32 0, i32 1
  %mode.at = getelementptr %struct.inode, ptr %inode, i32 0, i32 2
  %nlink.at = getelementptr %struct.inode, ptr %inode, i32 0, i32 3
  %mtime.at = getelementptr %struct.inode, ptr %inode, i32 0, i32 8
  %ino = load i64, ptr %inode
  %size = load i64, ptr %size.at
  %mode = load i32, ptr %mode.at
  %nlink = load i32, ptr %nlink.at
  %mtime = load %struct.timespec64, ptr %mtime.at
  %blocks = call i64 @count_resident(ptr %inode, i64 0)
  %stat.size = getelementptr %struct.kstat, ptr %stat, i32 0, i32 1
  %stat.blocks = getelementptr %struct.kstat, ptr %stat, i32 0, i32 2
  %stat.mode = getelementptr %struct.kstat, ptr %stat, i32 0, i32 3
  %stat.nlink = getelementptr %struct.kstat, ptr %stat, i32 0, i32 4
  %stat.mtime = getelementptr %struct.kstat, ptr %stat, i32 0, i32 5
  store i64 %ino, ptr %stat
  store i64 %size, ptr %stat.size
  store i64 %blocks, ptr %stat.blocks
  store i32 %mode, ptr %stat.mode
  store i32 %nlink, ptr %stat.nlink
  store %struct.timespec64 %mtime, ptr %stat.mtime
  ret void
}

; A struct as an argument, on the stack.
define i32 @cp_new_stat(ptr byval(%struct.kstat) align 8 %stat, ptr %statbuf) #0 {
  %end = getelementptr %struct.kstat, ptr null, i32 1
  %size = ptrtoint ptr %end to i64
  %left = call i64 @copy_to_user(ptr %statbuf, ptr %stat, i64 %size)
  ret i32 0
}

define i32 @vfs_statfs(ptr %dentry, ptr %buf) #0 {
  %task = call ptr @get_current()
  %inodes.at = getelementptr %struct.task_struct, ptr %task, i32 0, i32 1
  %pages = load i64, ptr %task
  %inodes = load i64, ptr %inodes.at
  %pages.used = call i64 @llvm.ctpop.i64(i64 %pages)
  %inodes.used = call i64 @llvm.ctpop.i64(i64 %inodes)
  %bfree = sub i64 64, %pages.used
  %ffree = sub i64 64, %inodes.used
  %bsize.at = getelementptr %struct.kstatfs, ptr %buf, i32 0, i32 1
  %blocks.at = getelementptr %struct.kstatfs, ptr %buf, i32 0, i32 2
  %bfree.at = getelementptr %struct.kstatfs, ptr %buf, i32 0, i32 3
  %files.at = getelementptr %struct.kstatfs, ptr %buf, i32 0, i32 4
  %ffree.at = getelementptr %struct.kstatfs, ptr %buf, i32 0, i32 5
  store i64 2240043254, ptr %buf
  store i64 512, ptr %bsize.at
  store i64 32, ptr %blocks.at
  store i64 %bfree, ptr %bfree.at
  store i64 32, ptr %files.at
  store i64 %ffree, ptr %ffree.at
  ret i32 0
}

; 0, or -EISDIR. Who has the file open keeps it.
define i32 @vfs_unlink(ptr %dir, ptr %dentry) #0 {
  %inode.at = getelementptr %struct.dentry, ptr %dentry, i32 0, i32 1
  %inode = load ptr, ptr %inode.at
  %is.dir = call i1 @s_isdir(ptr %inode)
  br i1 %is.dir, label %eisdir, label %unlink
unlink:
  %op.at = getelementptr %struct.inode, ptr %dir, i32 0, i32 6
  %op = load ptr, ptr %op.at
  %unlink.at = getelementptr %struct.inode_operations, ptr %op, i32 0, i32 2
  %method = load ptr, ptr %unlink.at
  %error = call i32 %method(ptr %dir, ptr %dentry)
  call void @d_drop(ptr %dentry)
  ret i32 %error
eisdir:
  ret i32 -21
}

define i32 @do_unlinkat(i32 %dfd, ptr %name) #0 {
  %nd = alloca %struct.nameidata
  %error = call i32 @path_parentat(ptr %name, ptr %nd)
  %failed = icmp slt i32 %error, 0
  br i1 %failed, label %no.path, label %last
last:
  %dir = load ptr, ptr %nd
  %dentry = call ptr @lookup_last(ptr %nd)
  %missing = icmp eq ptr %dentry, null
  br i1 %missing, label %enoent, label %unlink
unlink:
  %inode.at = getelementptr %struct.dentry, ptr %dir, i32 0, i32 1
  %inode = load ptr, ptr %inode.at
  %result = call i32 @vfs_unlink(ptr %inode, ptr %dentry)
  call void @dput(ptr %dentry)
  call void @dput(ptr %dir)
  ret i32 %result
enoent:
  call void @dput(ptr %dir)
  ret i32 -2
no.path:
  ret i32 %error
}
