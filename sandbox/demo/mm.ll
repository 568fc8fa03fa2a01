; mm: small objects, page frames, mappings. All of it belongs to the current task.

; An object of up to 64 bytes, or null.
define ptr @kmalloc(i64 %size, i32 %flags) #0 {
  %task = call ptr @get_current()
  %fits = icmp ule i64 %size, 64
  br i1 %fits, label %try, label %none
try:
  %map = getelementptr %struct.task_struct, ptr %task, i32 0, i32 4
  %nr = call i32 @alloc_bit(ptr %map)
  %full = icmp slt i32 %nr, 0
  br i1 %full, label %none, label %done
done:
  %object = getelementptr %struct.task_struct, ptr %task, i32 0, i32 20, i32 %nr
  ret ptr %object
none:
  ret ptr null
}

define void @kfree(ptr %object) #0 {
  %nothing = icmp eq ptr %object, null
  br i1 %nothing, label %done, label %free
free:
  %task = call ptr @get_current()
  %map = getelementptr %struct.task_struct, ptr %task, i32 0, i32 4
  %first = getelementptr %struct.task_struct, ptr %task, i32 0, i32 20
  %address = ptrtoint ptr %object to i64
  %base = ptrtoint ptr %first to i64
  %offset = sub i64 %address, %base
  %nr = lshr i64 %offset, 6
  call void @clear_bit(i64 %nr, ptr %map)
  br label %done
done:
  ret void
}

; Page frames go by their number + 1, so that 0 can mean none.
define ptr @page_address(i32 %page) #0 {
  %task = call ptr @get_current()
  %frame = sub i32 %page, 1
  %address = getelementptr %struct.task_struct, ptr %task, i32 0, i32 19, i32 %frame
  ret ptr %address
}

define void @clear_page(ptr %page) #0 {
entry:
  br label %body
body:
  %i = phi i64 [ 0, %entry ], [ %i.next, %body ]
  %at = getelementptr <16 x i8>, ptr %page, i64 %i
  store <16 x i8> zeroinitializer, ptr %at, align 1
  %i.next = add i64 %i, 1
  %more = icmp ult i64 %i.next, 32
  br i1 %more, label %body, label %done
done:
  ret void
}

; A zeroed page, or 0.
define i32 @alloc_page(i32 %flags) #0 {
  %task = call ptr @get_current()
  %frame = call i32 @alloc_bit(ptr %task)
  %page = add i32 %frame, 1
  %full = icmp eq i32 %page, 0
  br i1 %full, label %none, label %clear
clear:
  %address = call ptr @page_address(i32 %page)
  call void @clear_page(ptr %address)
  ret i32 %page
none:
  ret i32 0
}

define void @free_page(i32 %page) #0 {
  %task = call ptr @get_current()
  %frame = sub i32 %page, 1
  %nr = zext i32 %frame to i64
  call void @clear_bit(i64 %nr, ptr %task)
  ret void
}

; Reserves len bytes of address space (whole 4096s), counts the pages that the file has from
; page pgoff on into *populate, and returns the address: addr itself if it is not 0. Nothing is
; really mapped. Eight arguments: the last two travel on the stack.
define i64 @do_mmap(ptr %file, i64 %addr, i64 %len, i64 %prot, i64 %flags, i64 %vm_flags, i64 %pgoff, ptr %populate) #0 {
  %empty = icmp eq i64 %len, 0
  %beyond = icmp uge i64 %pgoff, 8
  %bad = or i1 %empty, %beyond
  br i1 %bad, label %invalid, label %place
place:
  %inode.at = getelementptr %struct.file, ptr %file, i32 0, i32 2
  %inode = load ptr, ptr %inode.at
  %resident = call i64 @count_resident(ptr %inode, i64 %pgoff)
  store i64 %resident, ptr %populate
  %fixed = icmp ne i64 %addr, 0
  br i1 %fixed, label %as.asked, label %find
as.asked:
  ret i64 %addr
find:
  %found = call i64 @get_unmapped_area(i64 %len)
  ret i64 %found
invalid:
  ret i64 -22
}

; Pages that are not holes, from the given one on.
define i64 @count_resident(ptr %inode, i64 %first) #0 {
entry:
  br label %head
head:
  %i = phi i64 [ %first, %entry ], [ %i.next, %body ]
  %count = phi i64 [ 0, %entry ], [ %count.next, %body ]
  %more = icmp ult i64 %i, 8
  br i1 %more, label %body, label %done
body:
  %page.at = getelementptr %struct.inode, ptr %inode, i32 0, i32 9, i64 %i
  %page = load i32, ptr %page.at
  %there = icmp ne i32 %page, 0
  %one = zext i1 %there to i64
  %count.next = add i64 %count, %one
  %i.next = add i64 %i, 1
  br label %head
done:
  ret i64 %count
}

define i64 @get_unmapped_area(i64 %len) #0 {
  %task = call ptr @get_current()
  %base.at = getelementptr %struct.task_struct, ptr %task, i32 0, i32 8
  %base = load i64, ptr %base.at
  %up = add i64 %len, 4095
  %whole = and i64 %up, -4096
  %next = add i64 %base, %whole
  store i64 %next, ptr %base.at
  ret i64 %base
}
