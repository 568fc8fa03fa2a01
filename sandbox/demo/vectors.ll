; Vector registers, and a calling convention that is not C's (fastcc).

; Copies n bytes, sixteen at a time through a vector register, then the rest. Returns 0, the
; number of bytes not copied.
define i64 @__copy_user(ptr %to, ptr %from, i64 %n) #0 {
entry:
  %blocks = and i64 %n, -16
  br label %block.head
block.head:
  %i = phi i64 [ 0, %entry ], [ %i.next, %block ]
  %block.more = icmp ult i64 %i, %blocks
  br i1 %block.more, label %block, label %byte.head
block:
  %block.from = getelementptr i8, ptr %from, i64 %i
  %block.to = getelementptr i8, ptr %to, i64 %i
  %sixteen = load <16 x i8>, ptr %block.from, align 1
  store <16 x i8> %sixteen, ptr %block.to, align 1
  %i.next = add i64 %i, 16
  br label %block.head
byte.head:
  %j = phi i64 [ %blocks, %block.head ], [ %j.next, %byte ]
  %byte.more = icmp ult i64 %j, %n
  br i1 %byte.more, label %byte, label %done
byte:
  %byte.from = getelementptr i8, ptr %from, i64 %j
  %byte.to = getelementptr i8, ptr %to, i64 %j
  %one = load i8, ptr %byte.from
  store i8 %one, ptr %byte.to
  %j.next = add i64 %j, 1
  br label %byte.head
done:
  ret i64 0
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

; One step of four hashes side by side. Vectors as arguments and as the result.
define <4 x i32> @mix_lanes(<4 x i32> %lanes, <4 x i32> %data) #0 {
  %scaled = mul <4 x i32> %lanes, splat (i32 16777619)
  %mixed = xor <4 x i32> %scaled, %data
  ret <4 x i32> %mixed
}

; The checksum of one page of 512 bytes: the sum of four hashes of every fourth word.
define fastcc i32 @page_checksum(ptr %page) #0 {
entry:
  br label %body
body:
  %i = phi i64 [ 0, %entry ], [ %i.next, %body ]
  %lanes = phi <4 x i32> [ <i32 1, i32 2, i32 3, i32 4>, %entry ], [ %lanes.next, %body ]
  %at = getelementptr <4 x i32>, ptr %page, i64 %i
  %data = load <4 x i32>, ptr %at, align 1
  %lanes.next = call <4 x i32> @mix_lanes(<4 x i32> %lanes, <4 x i32> %data)
  %i.next = add i64 %i, 1
  %more = icmp ult i64 %i.next, 32
  br i1 %more, label %body, label %done
done:
  %sum = call i32 @llvm.vector.reduce.add.v4i32(<4 x i32> %lanes.next)
  ret i32 %sum
}

define void @submit_bio(ptr %inode, i32 %index) #0 {
  %task = call ptr @get_current()
  %head.at = getelementptr %Task, ptr %task, i32 0, i32 10
  %written.at = getelementptr %Task, ptr %task, i32 0, i32 11
  %sum.at = getelementptr %Task, ptr %task, i32 0, i32 12
  %dirty.at = getelementptr %Inode, ptr %inode, i32 0, i32 5
  %page.at = getelementptr %Inode, ptr %inode, i32 0, i32 9, i32 %index
  %page = load i32, ptr %page.at
  %address = call ptr @page_address(i32 %page)
  %checksum = call fastcc i32 @page_checksum(ptr %address)
  %wide = zext i32 %checksum to i64
  %sum = load i64, ptr %sum.at
  %sum.next = call i64 @hash_64(i64 %sum, i64 %wide)
  store i64 %sum.next, ptr %sum.at
  %written = load i64, ptr %written.at
  %written.next = add i64 %written, 1
  store i64 %written.next, ptr %written.at
  %dirty = load i32, ptr %dirty.at
  %bit = shl i32 1, %index
  %clean = xor i32 %dirty, %bit
  store i32 %clean, ptr %dirty.at
  store i32 %index, ptr %head.at
  ret void
}
