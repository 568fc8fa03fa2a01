; Structs by value: as results and arguments, in registers and in memory.

; The task's own time: 250 ticks a second. A struct returned in two registers.
define %Timespec64 @current_time(ptr %inode) #0 {
  %task = call ptr @get_current()
  %ticks.at = getelementptr %Task, ptr %task, i32 0, i32 6
  %ticks = load i64, ptr %ticks.at
  %sec = udiv i64 %ticks, 250
  %part = urem i64 %ticks, 250
  %nsec = mul i64 %part, 4000000
  %with.sec = insertvalue %Timespec64 poison, i64 %sec, 0
  %time = insertvalue %Timespec64 %with.sec, i64 %nsec, 1
  ret %Timespec64 %time
}

; A time of day minus an earlier one. Structs as arguments, each in two registers.
define %Timespec64 @timespec64_sub(%Timespec64 %lhs, %Timespec64 %rhs) #0 {
  %lhs.sec = extractvalue %Timespec64 %lhs, 0
  %lhs.nsec = extractvalue %Timespec64 %lhs, 1
  %rhs.sec = extractvalue %Timespec64 %rhs, 0
  %rhs.nsec = extractvalue %Timespec64 %rhs, 1
  %sec = sub i64 %lhs.sec, %rhs.sec
  %nsec = sub i64 %lhs.nsec, %rhs.nsec
  %borrow = icmp slt i64 %nsec, 0
  %sec.less = sub i64 %sec, 1
  %nsec.more = add i64 %nsec, 1000000000
  %sec.result = select i1 %borrow, i64 %sec.less, i64 %sec
  %nsec.result = select i1 %borrow, i64 %nsec.more, i64 %nsec
  %with.sec = insertvalue %Timespec64 poison, i64 %sec.result, 0
  %time = insertvalue %Timespec64 %with.sec, i64 %nsec.result, 1
  ret %Timespec64 %time
}

define void @inode_init_owner(ptr %inode, i32 %mode) #0 {
  %mode.at = getelementptr %Inode, ptr %inode, i32 0, i32 2
  %nlink.at = getelementptr %Inode, ptr %inode, i32 0, i32 3
  %count.at = getelementptr %Inode, ptr %inode, i32 0, i32 4
  %op.at = getelementptr %Inode, ptr %inode, i32 0, i32 6
  %fop.at = getelementptr %Inode, ptr %inode, i32 0, i32 7
  %mtime.at = getelementptr %Inode, ptr %inode, i32 0, i32 8
  store i32 %mode, ptr %mode.at
  store i32 1, ptr %nlink.at
  store i32 1, ptr %count.at
  %now = call %Timespec64 @current_time(ptr %inode)
  store %Timespec64 %now, ptr %mtime.at
  %format = and i32 %mode, 61440
  switch i32 %format, label %regular [ i32 16384, label %directory
                                       i32 8192, label %device ]
directory:
  store ptr @ramfs_dir_inode_operations, ptr %op.at
  store ptr @ramfs_dir_operations, ptr %fop.at
  ret void
device:
  store ptr @zero_fops, ptr %fop.at
  ret void
regular:
  store ptr @ramfs_file_operations, ptr %fop.at
  ret void
}

; Gives a name an inode; the tree holds a reference to the name from then on. 0 or -ENOSPC.
define i32 @ramfs_mknod(ptr %dir, ptr %dentry, i32 %mode) #0 {
  %inode = call ptr @new_inode(i32 %mode)
  %full = icmp eq ptr %inode, null
  br i1 %full, label %enospc, label %done
done:
  call void @d_instantiate(ptr %dentry, ptr %inode)
  %pinned = call ptr @dget(ptr %dentry)
  %mtime.at = getelementptr %Inode, ptr %dir, i32 0, i32 8
  %now = call %Timespec64 @current_time(ptr %dir)
  store %Timespec64 %now, ptr %mtime.at
  ret i32 0
enospc:
  ret i32 -28
}

define i32 @simple_unlink(ptr %dir, ptr %dentry) #0 {
  %inode.at = getelementptr %Dentry, ptr %dentry, i32 0, i32 1
  %inode = load ptr, ptr %inode.at
  %nlink.at = getelementptr %Inode, ptr %inode, i32 0, i32 3
  %nlink = load i32, ptr %nlink.at
  %less = sub i32 %nlink, 1
  store i32 %less, ptr %nlink.at
  %mtime.at = getelementptr %Inode, ptr %dir, i32 0, i32 8
  %now = call %Timespec64 @current_time(ptr %dir)
  store %Timespec64 %now, ptr %mtime.at
  call void @dput(ptr %dentry)
  ret i32 0
}

; Sets mtime, and the size if the file has grown.
define void @write_end(ptr %inode, i64 %end) #0 {
  %size.at = getelementptr %Inode, ptr %inode, i32 0, i32 1
  %mtime.at = getelementptr %Inode, ptr %inode, i32 0, i32 8
  %size = load i64, ptr %size.at
  %grown = call i64 @llvm.umax.i64(i64 %size, i64 %end)
  store i64 %grown, ptr %size.at
  %now = call %Timespec64 @current_time(ptr %inode)
  store %Timespec64 %now, ptr %mtime.at
  ret void
}

; A struct as the result, through memory of the caller's.
define void @vfs_getattr(ptr sret(%Kstat) %stat, ptr %dentry) #0 {
  %inode.at = getelementptr %Dentry, ptr %dentry, i32 0, i32 1
  %inode = load ptr, ptr %inode.at
  %size.at = getelementptr %Inode, ptr %inode, i32 0, i32 1
  %mode.at = getelementptr %Inode, ptr %inode, i32 0, i32 2
  %nlink.at = getelementptr %Inode, ptr %inode, i32 0, i32 3
  %mtime.at = getelementptr %Inode, ptr %inode, i32 0, i32 8
  %ino = load i64, ptr %inode
  %size = load i64, ptr %size.at
  %mode = load i32, ptr %mode.at
  %nlink = load i32, ptr %nlink.at
  %mtime = load %Timespec64, ptr %mtime.at
  %blocks = call i64 @count_resident(ptr %inode, i64 0)
  %stat.size = getelementptr %Kstat, ptr %stat, i32 0, i32 1
  %stat.blocks = getelementptr %Kstat, ptr %stat, i32 0, i32 2
  %stat.mode = getelementptr %Kstat, ptr %stat, i32 0, i32 3
  %stat.nlink = getelementptr %Kstat, ptr %stat, i32 0, i32 4
  %stat.mtime = getelementptr %Kstat, ptr %stat, i32 0, i32 5
  store i64 %ino, ptr %stat
  store i64 %size, ptr %stat.size
  store i64 %blocks, ptr %stat.blocks
  store i32 %mode, ptr %stat.mode
  store i32 %nlink, ptr %stat.nlink
  store %Timespec64 %mtime, ptr %stat.mtime
  ret void
}

; A struct as an argument, on the stack.
define i32 @cp_new_stat(ptr byval(%Kstat) align 8 %stat, ptr %statbuf) #0 {
  %end = getelementptr %Kstat, ptr null, i32 1
  %size = ptrtoint ptr %end to i64
  %left = call i64 @copy_to_user(ptr %statbuf, ptr %stat, i64 %size)
  ret i32 0
}

define i64 @__x64_sys_newfstat(ptr %regs) #0 {
  %stat = alloca %Kstat
  %statbuf.at = getelementptr i64, ptr %regs, i32 1
  %fd = load i32, ptr %regs
  %statbuf = load ptr, ptr %statbuf.at
  %file = call ptr @fdget(i32 %fd)
  %none = icmp eq ptr %file, null
  br i1 %none, label %ebadf, label %getattr
getattr:
  %dentry.at = getelementptr %File, ptr %file, i32 0, i32 1
  %dentry = load ptr, ptr %dentry.at
  call void @vfs_getattr(ptr sret(%Kstat) %stat, ptr %dentry)
  %error = call i32 @cp_new_stat(ptr byval(%Kstat) align 8 %stat, ptr %statbuf)
  %wide = sext i32 %error to i64
  ret i64 %wide
ebadf:
  ret i64 -9
}

; Every field of the status but mtime, and the file's age in nanoseconds.
define i64 @demo_stat(i64 %fd) #0 {
  %stat = alloca %Kstat
  store %Kstat zeroinitializer, ptr %stat
  %address = ptrtoint ptr %stat to i64
  %error = call i64 @sys3(i64 4, i64 %fd, i64 %address, i64 0)
  %size.at = getelementptr %Kstat, ptr %stat, i32 0, i32 1
  %blocks.at = getelementptr %Kstat, ptr %stat, i32 0, i32 2
  %mode.at = getelementptr %Kstat, ptr %stat, i32 0, i32 3
  %nlink.at = getelementptr %Kstat, ptr %stat, i32 0, i32 4
  %mtime.at = getelementptr %Kstat, ptr %stat, i32 0, i32 5
  %ino = load i64, ptr %stat
  %size = load i64, ptr %size.at
  %blocks = load i64, ptr %blocks.at
  %mode = load i32, ptr %mode.at
  %nlink = load i32, ptr %nlink.at
  %mtime = load %Timespec64, ptr %mtime.at
  %mode.wide = zext i32 %mode to i64
  %nlink.wide = zext i32 %nlink to i64
  %age = call i64 @demo_age(%Timespec64 %mtime)
  %h1 = call i64 @hash_64(i64 %error, i64 %ino)
  %h2 = call i64 @hash_64(i64 %h1, i64 %size)
  %h3 = call i64 @hash_64(i64 %h2, i64 %blocks)
  %h4 = call i64 @hash_64(i64 %h3, i64 %mode.wide)
  %h5 = call i64 @hash_64(i64 %h4, i64 %nlink.wide)
  %h6 = call i64 @hash_64(i64 %h5, i64 %age)
  ret i64 %h6
}

define i64 @demo_age(%Timespec64 %mtime) #0 {
  %now = call %Timespec64 @current_time(ptr null)
  %age = call %Timespec64 @timespec64_sub(%Timespec64 %now, %Timespec64 %mtime)
  %sec = extractvalue %Timespec64 %age, 0
  %nsec = extractvalue %Timespec64 %age, 1
  %sec.ns = mul i64 %sec, 1000000000
  %ns = add i64 %sec.ns, %nsec
  ret i64 %ns
}
