; Recursion, which the native language does not have: a function that calls itself, and start_kernel,
; which calls what would call it.

@path_dev = constant [5 x i8] c"/dev\00"
@path_alice = constant [12 x i8] c"/home/alice\00"
@path_alice_docs = constant [17 x i8] c"/home/alice/docs\00"
@path_bob = constant [10 x i8] c"/home/bob\00"
@path_bob_docs = constant [15 x i8] c"/home/bob/docs\00"

; An empty system for a task: maps, root, and a few directories. The root comes before what asks
; for the current task, which may be calling us because there was none.
define void @start_kernel(ptr %task) #0 {
  call void @mm_init(ptr %task)
  %rq = getelementptr %Task, ptr %task, i32 0, i32 14
  call void @sched_init(ptr %rq)
  call void @mount_root(ptr %task)
  %dev = call i32 @do_mknodat(i32 -100, ptr @path_dev, i32 16877)
  %zero = call i32 @do_mknodat(i32 -100, ptr @path_dev_zero, i32 8630)
  %home = call i32 @do_mknodat(i32 -100, ptr @path_home, i32 16877)
  %alice = call i32 @do_mknodat(i32 -100, ptr @path_alice, i32 16877)
  %alice.docs = call i32 @do_mknodat(i32 -100, ptr @path_alice_docs, i32 16877)
  %bob = call i32 @do_mknodat(i32 -100, ptr @path_bob, i32 16877)
  %bob.docs = call i32 @do_mknodat(i32 -100, ptr @path_bob_docs, i32 16877)
  ret void
}

; Walks to the directory of the last component, a level of recursion for each one before it, and
; leaves that directory, referenced, and the component in nd. 0, or -ENOENT, -ENOTDIR, -ELOOP
; (more than 8 levels), -ENAMETOOLONG (a component of more than 31 bytes).
define i32 @link_path_walk(ptr %name, ptr %nd, i32 %depth) #0 {
  %deep = icmp ugt i32 %depth, 8
  br i1 %deep, label %eloop, label %component
component:
  %first = call ptr @skip_slashes(ptr %name)
  %hash.len = call i64 @hash_name(ptr %first)
  %len = lshr i64 %hash.len, 32
  %long = icmp ugt i64 %len, 31
  br i1 %long, label %enametoolong, label %rest
rest:
  %end = getelementptr i8, ptr %first, i64 %len
  %after = call ptr @skip_slashes(ptr %end)
  %c = load i8, ptr %after
  %is.last = icmp eq i8 %c, 0
  br i1 %is.last, label %last, label %descend
last:
  %dir.held = load ptr, ptr %nd
  %ignored = call ptr @dget(ptr %dir.held)
  %name.at = getelementptr %Nameidata, ptr %nd, i32 0, i32 1
  %hash.at = getelementptr %Nameidata, ptr %nd, i32 0, i32 2
  store ptr %first, ptr %name.at
  store i64 %hash.len, ptr %hash.at
  ret i32 0
descend:
  %dir = load ptr, ptr %nd
  %child = call ptr @d_lookup(ptr %dir, ptr %first, i64 %hash.len)
  %missing = icmp eq ptr %child, null
  br i1 %missing, label %enoent, label %check
check:
  %inode.at = getelementptr %Dentry, ptr %child, i32 0, i32 1
  %inode = load ptr, ptr %inode.at
  %is.dir = call i1 @s_isdir(ptr %inode)
  br i1 %is.dir, label %deeper, label %enotdir
deeper:
  store ptr %child, ptr %nd
  %next.depth = add i32 %depth, 1
  %error = call i32 @link_path_walk(ptr %after, ptr %nd, i32 %next.depth)
  call void @dput(ptr %child)
  ret i32 %error
enotdir:
  call void @dput(ptr %child)
  ret i32 -20
enoent:
  ret i32 -2
eloop:
  ret i32 -40
enametoolong:
  ret i32 -36
}

; The blocks of a tree: its own and, recursively, those of what is below.
define i64 @simple_du(ptr %dentry) #0 {
entry:
  %inode.at = getelementptr %Dentry, ptr %dentry, i32 0, i32 1
  %inode = load ptr, ptr %inode.at
  %own = call i64 @count_resident(ptr %inode, i64 0)
  %subdirs.at = getelementptr %Dentry, ptr %dentry, i32 0, i32 2
  br label %head
head:
  %link = phi ptr [ %subdirs.at, %entry ], [ %child.at, %body ]
  %sum = phi i64 [ %own, %entry ], [ %sum.next, %body ]
  %at = load ptr, ptr %link
  %end = icmp eq ptr %at, null
  br i1 %end, label %done, label %body
body:
  %child.at = getelementptr %Dentry, ptr %at, i32 0, i32 3
  %below = call i64 @simple_du(ptr %at)
  %sum.next = add i64 %sum, %below
  br label %head
done:
  ret i64 %sum
}

; Recursive: the leading digits first.
define void @seq_put_decimal_ull(ptr %m, i64 %num) #0 {
  %leading = udiv i64 %num, 10
  %digit = urem i64 %num, 10
  %short = icmp eq i64 %leading, 0
  br i1 %short, label %last, label %recurse
recurse:
  call void @seq_put_decimal_ull(ptr %m, i64 %leading)
  br label %last
last:
  %code = add i64 %digit, 48
  %c = trunc i64 %code to i8
  call void @seq_putc(ptr %m, i8 zeroext %c)
  ret void
}
