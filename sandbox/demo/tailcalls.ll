; Tail calls: these functions leave by a jump to the next.

; Drops a reference; with the last one the name goes, and with it a reference to its parent.
define void @dput(ptr %dentry) #0 {
  %nothing = icmp eq ptr %dentry, null
  br i1 %nothing, label %done, label %drop
drop:
  %count.at = getelementptr %Dentry, ptr %dentry, i32 0, i32 5
  %count = load i32, ptr %count.at
  %less = sub i32 %count, 1
  store i32 %less, ptr %count.at
  %last = icmp eq i32 %less, 0
  br i1 %last, label %kill, label %done
kill:
  musttail call void @dentry_kill(ptr %dentry)
  ret void
done:
  ret void
}

define void @dentry_kill(ptr %dentry) #0 {
  call void @d_drop(ptr %dentry)
  %inode.at = getelementptr %Dentry, ptr %dentry, i32 0, i32 1
  %inode = load ptr, ptr %inode.at
  call void @iput(ptr %inode)
  %parent = load ptr, ptr %dentry
  call void @d_free(ptr %dentry)
  musttail call void @dput(ptr %parent)
  ret void
}

define void @iput(ptr %inode) #0 {
  %nothing = icmp eq ptr %inode, null
  br i1 %nothing, label %done, label %drop
drop:
  %count.at = getelementptr %Inode, ptr %inode, i32 0, i32 4
  %count = load i32, ptr %count.at
  %less = sub i32 %count, 1
  store i32 %less, ptr %count.at
  %last = icmp eq i32 %less, 0
  br i1 %last, label %evict, label %done
evict:
  musttail call void @evict(ptr %inode)
  ret void
done:
  ret void
}

define void @fput(ptr %file) #0 {
  %count.at = getelementptr %File, ptr %file, i32 0, i32 5
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

define void @putname(ptr %name) #0 {
  musttail call void @kfree(ptr %name)
  ret void
}

define i64 @copy_to_user(ptr %to, ptr %from, i64 %n) #0 {
  %left = musttail call i64 @__copy_user(ptr %to, ptr %from, i64 %n)
  ret i64 %left
}

define i64 @copy_from_user(ptr %to, ptr %from, i64 %n) #0 {
  %left = musttail call i64 @__copy_user(ptr %to, ptr %from, i64 %n)
  ret i64 %left
}

; A plain file, unless mode says another format.
define i32 @ramfs_create(ptr %dir, ptr %dentry, i32 %mode) #0 {
  %format = and i32 %mode, 61440
  %none = icmp eq i32 %format, 0
  %regular = or i32 %mode, 32768
  %full.mode = select i1 %none, i32 %regular, i32 %mode
  %error = musttail call i32 @ramfs_mknod(ptr %dir, ptr %dentry, i32 %full.mode)
  ret i32 %error
}

define i32 @ramfs_mkdir(ptr %dir, ptr %dentry, i32 %mode) #0 {
  %permissions = and i32 %mode, 4095
  %full.mode = or i32 %permissions, 16384
  %error = musttail call i32 @ramfs_mknod(ptr %dir, ptr %dentry, i32 %full.mode)
  ret i32 %error
}

define i32 @vfs_mkdir(ptr %dir, ptr %dentry, i32 %mode) #0 {
  %op.at = getelementptr %Inode, ptr %dir, i32 0, i32 6
  %op = load ptr, ptr %op.at
  %mkdir.at = getelementptr %InodeOperations, ptr %op, i32 0, i32 1
  %mkdir = load ptr, ptr %mkdir.at
  %error = musttail call i32 %mkdir(ptr %dir, ptr %dentry, i32 %mode)
  ret i32 %error
}

define i64 @vfs_llseek(ptr %file, i64 %offset, i32 %whence) #0 {
  %op = load ptr, ptr %file
  %llseek = load ptr, ptr %op
  %pos = musttail call i64 %llseek(ptr %file, i64 %offset, i32 %whence)
  ret i64 %pos
}

define i32 @vfs_fsync_range(ptr %file, i64 %start, i64 %end, i32 %datasync) #0 {
  %op = load ptr, ptr %file
  %fsync.at = getelementptr %FileOperations, ptr %op, i32 0, i32 3
  %fsync = load ptr, ptr %fsync.at
  %error = musttail call i32 %fsync(ptr %file, i64 %start, i64 %end, i32 %datasync)
  ret i32 %error
}

; Writing out, as an elevator: from the page last written up, then from the top down, until nothing is
; dirty. The two directions hand over to each other.
define i32 @elv_scan_up(ptr %inode, i32 %index, i32 %written) #0 {
  %dirty.at = getelementptr %Inode, ptr %inode, i32 0, i32 5
  %dirty = load i32, ptr %dirty.at
  %clean = icmp eq i32 %dirty, 0
  br i1 %clean, label %done, label %go
go:
  %top = icmp sgt i32 %index, 7
  br i1 %top, label %turn, label %look
turn:
  %from.turn = musttail call i32 @elv_scan_down(ptr %inode, i32 7, i32 %written)
  ret i32 %from.turn
look:
  %here = lshr i32 %dirty, %index
  %bit = and i32 %here, 1
  %write = icmp ne i32 %bit, 0
  br i1 %write, label %submit, label %next
submit:
  call void @submit_bio(ptr %inode, i32 %index)
  br label %next
next:
  %index.next = add i32 %index, 1
  %written.next = add i32 %written, %bit
  %from.next = musttail call i32 @elv_scan_up(ptr %inode, i32 %index.next, i32 %written.next)
  ret i32 %from.next
done:
  ret i32 %written
}

define i32 @elv_scan_down(ptr %inode, i32 %index, i32 %written) #0 {
  %dirty.at = getelementptr %Inode, ptr %inode, i32 0, i32 5
  %dirty = load i32, ptr %dirty.at
  %clean = icmp eq i32 %dirty, 0
  br i1 %clean, label %done, label %go
go:
  %bottom = icmp slt i32 %index, 0
  br i1 %bottom, label %turn, label %look
turn:
  %from.turn = musttail call i32 @elv_scan_up(ptr %inode, i32 0, i32 %written)
  ret i32 %from.turn
look:
  %here = lshr i32 %dirty, %index
  %bit = and i32 %here, 1
  %write = icmp ne i32 %bit, 0
  br i1 %write, label %submit, label %next
submit:
  call void @submit_bio(ptr %inode, i32 %index)
  br label %next
next:
  %index.next = sub i32 %index, 1
  %written.next = add i32 %written, %bit
  %from.next = musttail call i32 @elv_scan_down(ptr %inode, i32 %index.next, i32 %written.next)
  ret i32 %from.next
done:
  ret i32 %written
}
