; dcache: names, their tree, and the walk along a path

define ptr @dget(ptr %dentry) #0 {
  %count.at = getelementptr %struct.dentry, ptr %dentry, i32 0, i32 5
  %count = load i32, ptr %count.at
  %more = add i32 %count, 1
  store i32 %more, ptr %count.at
  ret ptr %dentry
}

; Drops a reference; with the last one the name goes, and with it a reference to its parent.
define void @dput(ptr %dentry) #0 {
  %nothing = icmp eq ptr %dentry, null
  br i1 %nothing, label %done, label %drop
drop:
  %count.at = getelementptr %struct.dentry, ptr %dentry, i32 0, i32 5
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
  %inode.at = getelementptr %struct.dentry, ptr %dentry, i32 0, i32 1
  %inode = load ptr, ptr %inode.at
  call void @iput(ptr %inode)
  %parent = load ptr, ptr %dentry
  call void @d_free(ptr %dentry)
  musttail call void @dput(ptr %parent)
  ret void
}

define void @d_free(ptr %dentry) #0 {
  %task = call ptr @get_current()
  %map = getelementptr %struct.task_struct, ptr %task, i32 0, i32 2
  %first = getelementptr %struct.task_struct, ptr %task, i32 0, i32 18
  %address = ptrtoint ptr %dentry to i64
  %base = ptrtoint ptr %first to i64
  %offset = sub i64 %address, %base
  %end = getelementptr %struct.dentry, ptr null, i32 1
  %size = ptrtoint ptr %end to i64
  %nr = udiv i64 %offset, %size
  call void @clear_bit(i64 %nr, ptr %map)
  ret void
}

; Takes a name out of its directory, if it is in it.
define void @d_drop(ptr %dentry) #0 {
entry:
  %parent = load ptr, ptr %dentry
  %is.root = icmp eq ptr %parent, null
  br i1 %is.root, label %done, label %start
start:
  %subdirs = getelementptr %struct.dentry, ptr %parent, i32 0, i32 2
  br label %head
head:
  %link = phi ptr [ %subdirs, %start ], [ %next.link, %advance ]
  %at = load ptr, ptr %link
  %end = icmp eq ptr %at, null
  br i1 %end, label %done, label %compare
compare:
  %next.link = getelementptr %struct.dentry, ptr %at, i32 0, i32 3
  %found = icmp eq ptr %at, %dentry
  br i1 %found, label %remove, label %advance
advance:
  br label %head
remove:
  %after = load ptr, ptr %next.link
  store ptr %after, ptr %link
  br label %done
done:
  ret void
}

; A new name without an inode, in its directory, with one reference; null when there is no room.
define ptr @d_alloc(ptr %parent, ptr %name, i64 %hash_len) #0 {
  %task = call ptr @get_current()
  %map = getelementptr %struct.task_struct, ptr %task, i32 0, i32 2
  %nr = call i32 @alloc_bit(ptr %map)
  %full = icmp slt i32 %nr, 0
  br i1 %full, label %none, label %fill
fill:
  %dentry = getelementptr %struct.task_struct, ptr %task, i32 0, i32 18, i32 %nr
  %inode.at = getelementptr %struct.dentry, ptr %dentry, i32 0, i32 1
  %subdirs.at = getelementptr %struct.dentry, ptr %dentry, i32 0, i32 2
  %child.at = getelementptr %struct.dentry, ptr %dentry, i32 0, i32 3
  %hash.at = getelementptr %struct.dentry, ptr %dentry, i32 0, i32 4
  %count.at = getelementptr %struct.dentry, ptr %dentry, i32 0, i32 5
  %name.at = getelementptr %struct.dentry, ptr %dentry, i32 0, i32 6
  store ptr %parent, ptr %dentry
  store ptr null, ptr %inode.at
  store ptr null, ptr %subdirs.at
  store ptr null, ptr %child.at
  store i64 %hash_len, ptr %hash.at
  store i32 1, ptr %count.at
  %len = lshr i64 %hash_len, 32
  %left = call i64 @__copy_user(ptr %name.at, ptr %name, i64 %len)
  %end = getelementptr i8, ptr %name.at, i64 %len
  store i8 0, ptr %end
  %is.root = icmp eq ptr %parent, null
  br i1 %is.root, label %done, label %link
link:
  %held = call ptr @dget(ptr %parent)
  %siblings.at = getelementptr %struct.dentry, ptr %held, i32 0, i32 2
  %siblings = load ptr, ptr %siblings.at
  store ptr %siblings, ptr %child.at
  store ptr %dentry, ptr %siblings.at
  br label %done
done:
  ret ptr %dentry
none:
  ret ptr null
}

define void @d_instantiate(ptr %dentry, ptr %inode) #0 {
  %inode.at = getelementptr %struct.dentry, ptr %dentry, i32 0, i32 1
  store ptr %inode, ptr %inode.at
  ret void
}

; Are the first len bytes of two names the same?
define i1 @dentry_cmp(ptr %cs, ptr %ct, i64 %tcount) #0 {
entry:
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %i.next, %body ]
  %more = icmp ult i64 %i, %tcount
  br i1 %more, label %body, label %same
body:
  %a.at = getelementptr i8, ptr %cs, i64 %i
  %b.at = getelementptr i8, ptr %ct, i64 %i
  %a = load i8, ptr %a.at
  %b = load i8, ptr %b.at
  %i.next = add i64 %i, 1
  %equal = icmp eq i8 %a, %b
  br i1 %equal, label %head, label %differ
same:
  ret i1 true
differ:
  ret i1 false
}

; The child of that name, with a reference, or null.
define ptr @d_lookup(ptr %parent, ptr %name, i64 %hash_len) #0 {
entry:
  %subdirs.at = getelementptr %struct.dentry, ptr %parent, i32 0, i32 2
  %len = lshr i64 %hash_len, 32
  br label %head
head:
  %link = phi ptr [ %subdirs.at, %entry ], [ %child.at, %next ]
  %at = load ptr, ptr %link
  %end = icmp eq ptr %at, null
  br i1 %end, label %none, label %look
look:
  %child.at = getelementptr %struct.dentry, ptr %at, i32 0, i32 3
  %hash.at = getelementptr %struct.dentry, ptr %at, i32 0, i32 4
  %hash = load i64, ptr %hash.at
  %maybe = icmp eq i64 %hash, %hash_len
  br i1 %maybe, label %compare, label %next
compare:
  %name.at = getelementptr %struct.dentry, ptr %at, i32 0, i32 6
  %same = call i1 @dentry_cmp(ptr %name.at, ptr %name, i64 %len)
  br i1 %same, label %found, label %next
next:
  br label %head
found:
  %held = call ptr @dget(ptr %at)
  ret ptr %held
none:
  ret ptr null
}

; ---------------------------------------------------------------------------------------------
; The walk

define ptr @skip_slashes(ptr %name) #0 {
entry:
  br label %head
head:
  %at = phi ptr [ %name, %entry ], [ %next, %body ]
  %c = load i8, ptr %at
  %slash = icmp eq i8 %c, 47
  br i1 %slash, label %body, label %done
body:
  %next = getelementptr i8, ptr %at, i64 1
  br label %head
done:
  ret ptr %at
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
  %name.at = getelementptr %struct.nameidata, ptr %nd, i32 0, i32 1
  %hash.at = getelementptr %struct.nameidata, ptr %nd, i32 0, i32 2
  store ptr %first, ptr %name.at
  store i64 %hash.len, ptr %hash.at
  ret i32 0
descend:
  %dir = load ptr, ptr %nd
  %child = call ptr @d_lookup(ptr %dir, ptr %first, i64 %hash.len)
  %missing = icmp eq ptr %child, null
  br i1 %missing, label %enoent, label %check
check:
  %inode.at = getelementptr %struct.dentry, ptr %child, i32 0, i32 1
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

define i32 @path_parentat(ptr %name, ptr %nd) #0 {
  %task = call ptr @get_current()
  %root.at = getelementptr %struct.task_struct, ptr %task, i32 0, i32 5
  %root = load ptr, ptr %root.at
  store ptr %root, ptr %nd
  %error = call i32 @link_path_walk(ptr %name, ptr %nd, i32 0)
  ret i32 %error
}

; The dentry that nd names, referenced: the directory itself for an empty name; or null.
define ptr @lookup_last(ptr %nd) #0 {
  %dir = load ptr, ptr %nd
  %name.at = getelementptr %struct.nameidata, ptr %nd, i32 0, i32 1
  %hash.at = getelementptr %struct.nameidata, ptr %nd, i32 0, i32 2
  %name = load ptr, ptr %name.at
  %hash.len = load i64, ptr %hash.at
  %len = lshr i64 %hash.len, 32
  %empty = icmp eq i64 %len, 0
  br i1 %empty, label %itself, label %look
look:
  %found = call ptr @d_lookup(ptr %dir, ptr %name, i64 %hash.len)
  ret ptr %found
itself:
  %held = call ptr @dget(ptr %dir)
  ret ptr %held
}

; The blocks of a tree: its own and, recursively, those of what is below.
define i64 @simple_du(ptr %dentry) #0 {
entry:
  %inode.at = getelementptr %struct.dentry, ptr %dentry, i32 0, i32 1
  %inode = load ptr, ptr %inode.at
  %own = call i64 @count_resident(ptr %inode, i64 0)
  %subdirs.at = getelementptr %struct.dentry, ptr %dentry, i32 0, i32 2
  br label %head
head:
  %link = phi ptr [ %subdirs.at, %entry ], [ %child.at, %body ]
  %sum = phi i64 [ %own, %entry ], [ %sum.next, %body ]
  %at = load ptr, ptr %link
  %end = icmp eq ptr %at, null
  br i1 %end, label %done, label %body
body:
  %child.at = getelementptr %struct.dentry, ptr %at, i32 0, i32 3
  %below = call i64 @simple_du(ptr %at)
  %sum.next = add i64 %sum, %below
  br label %head
done:
  ret i64 %sum
}
