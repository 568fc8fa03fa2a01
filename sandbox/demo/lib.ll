; lib: bit maps, copying, hashing, formatted text

; ---------------------------------------------------------------------------------------------
; Bit maps of 64 slots

; Takes the lowest clear bit of a map; its number, or -1 when all are set.
define i32 @alloc_bit(ptr %map) #0 {
  %used = load i64, ptr %map
  %free = xor i64 %used, -1
  %full = icmp eq i64 %free, 0
  br i1 %full, label %none, label %take
take:
  %nr = call i64 @llvm.cttz.i64(i64 %free, i1 true)
  %bit = shl i64 1, %nr
  %now = or i64 %used, %bit
  store i64 %now, ptr %map
  %result = trunc i64 %nr to i32
  ret i32 %result
none:
  ret i32 -1
}

define void @clear_bit(i64 %nr, ptr %map) #0 {
  %shift = and i64 %nr, 63
  %bit = shl i64 1, %shift
  %others = xor i64 %bit, -1
  %used = load i64, ptr %map
  %now = and i64 %used, %others
  store i64 %now, ptr %map
  ret void
}

; ---------------------------------------------------------------------------------------------
; Copying

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

define i64 @copy_to_user(ptr %to, ptr %from, i64 %n) #0 {
  %left = musttail call i64 @__copy_user(ptr %to, ptr %from, i64 %n)
  ret i64 %left
}

define i64 @copy_from_user(ptr %to, ptr %from, i64 %n) #0 {
  %left = musttail call i64 @__copy_user(ptr %to, ptr %from, i64 %n)
  ret i64 %left
}

define i64 @clear_user(ptr %to, i64 %n) #0 {
entry:
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %i.next, %body ]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %body, label %done
body:
  %at = getelementptr i8, ptr %to, i64 %i
  store i8 0, ptr %at
  %i.next = add i64 %i, 1
  br label %head
done:
  ret i64 0
}

; Copies a string of less than count bytes, with its NUL; its length, or -ENAMETOOLONG.
define i64 @strncpy_from_user(ptr %dst, ptr %src, i64 %count) #0 {
entry:
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %i.next, %body ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %body, label %too.long
body:
  %from = getelementptr i8, ptr %src, i64 %i
  %to = getelementptr i8, ptr %dst, i64 %i
  %c = load i8, ptr %from
  store i8 %c, ptr %to
  %i.next = add i64 %i, 1
  %end = icmp eq i8 %c, 0
  br i1 %end, label %done, label %head
done:
  ret i64 %i
too.long:
  ret i64 -36
}

; ---------------------------------------------------------------------------------------------
; Hashing

; The hash (FNV-1a) and the length of a path component, which ends at '/' or NUL:
; length << 32 | hash.
define i64 @hash_name(ptr %name) #0 {
entry:
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %i.next, %body ]
  %hash = phi i32 [ -2128831035, %entry ], [ %hash.next, %body ]
  %at = getelementptr i8, ptr %name, i64 %i
  %c = load i8, ptr %at
  switch i8 %c, label %body [ i8 0, label %done
                              i8 47, label %done ]
body:
  %wide = zext i8 %c to i32
  %mixed = xor i32 %hash, %wide
  %hash.next = mul i32 %mixed, 16777619
  %i.next = add i64 %i, 1
  br label %head
done:
  %low = zext i32 %hash to i64
  %high = shl i64 %i, 32
  %hash.len = or i64 %high, %low
  ret i64 %hash.len
}

; sum * 31 + byte, over the bytes of buf.
define i32 @csum_partial(ptr %buf, i64 %len, i32 %sum) #0 {
entry:
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %i.next, %body ]
  %acc = phi i32 [ %sum, %entry ], [ %acc.next, %body ]
  %more = icmp ult i64 %i, %len
  br i1 %more, label %body, label %done
body:
  %at = getelementptr i8, ptr %buf, i64 %i
  %c = load i8, ptr %at
  %wide = zext i8 %c to i32
  %scaled = mul i32 %acc, 31
  %acc.next = add i32 %scaled, %wide
  %i.next = add i64 %i, 1
  br label %head
done:
  ret i32 %acc
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

; rotl(hash, 9) ^ value * golden ratio
define i64 @hash_64(i64 %hash, i64 %value) #0 {
  %turned = call i64 @llvm.fshl.i64(i64 %hash, i64 %hash, i64 9)
  %scaled = mul i64 %value, -7046029254386353131
  %mixed = xor i64 %turned, %scaled
  ret i64 %mixed
}

; xorshift64*: the upper half of the product is the number.
define i32 @prandom_u32_state(ptr %state) #0 {
  %x0 = load i64, ptr %state
  %r12 = lshr i64 %x0, 12
  %x1 = xor i64 %x0, %r12
  %l25 = shl i64 %x1, 25
  %x2 = xor i64 %x1, %l25
  %r27 = lshr i64 %x2, 27
  %x3 = xor i64 %x2, %r27
  store i64 %x3, ptr %state
  %product = mul i64 %x3, 2685821657736338717
  %upper = lshr i64 %product, 32
  %number = trunc i64 %upper to i32
  ret i32 %number
}

; ---------------------------------------------------------------------------------------------
; Formatted text: %d (i32), %s, %f (double >= 0, two decimals), %c, %%

define void @seq_putc(ptr %m, i8 %c) #0 {
  %count.at = getelementptr %struct.seq_file, ptr %m, i32 0, i32 2
  %size.at = getelementptr %struct.seq_file, ptr %m, i32 0, i32 1
  %count = load i64, ptr %count.at
  %size = load i64, ptr %size.at
  %next = add i64 %count, 1
  %fits = icmp ult i64 %next, %size
  br i1 %fits, label %store, label %done
store:
  %buf = load ptr, ptr %m
  %at = getelementptr i8, ptr %buf, i64 %count
  store i8 %c, ptr %at
  store i64 %next, ptr %count.at
  br label %done
done:
  ret void
}

define void @seq_puts(ptr %m, ptr %s) #0 {
entry:
  br label %head
head:
  %at = phi ptr [ %s, %entry ], [ %next, %body ]
  %c = load i8, ptr %at
  %end = icmp eq i8 %c, 0
  br i1 %end, label %done, label %body
body:
  call void @seq_putc(ptr %m, i8 %c)
  %next = getelementptr i8, ptr %at, i64 1
  br label %head
done:
  ret void
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
  call void @seq_putc(ptr %m, i8 %c)
  ret void
}

define void @seq_put_decimal_ll(ptr %m, i64 %num) #0 {
  %negative = icmp slt i64 %num, 0
  br i1 %negative, label %minus, label %plus
minus:
  call void @seq_putc(ptr %m, i8 45)
  %opposite = sub i64 0, %num
  call void @seq_put_decimal_ull(ptr %m, i64 %opposite)
  ret void
plus:
  call void @seq_put_decimal_ull(ptr %m, i64 %num)
  ret void
}

define void @seq_put_double(ptr %m, double %value) #0 {
  %whole = fptosi double %value to i64
  %whole.f = sitofp i64 %whole to double
  %rest = fsub double %value, %whole.f
  %scaled = fmul double %rest, 100.0
  %hundredths = fptosi double %scaled to i64
  call void @seq_put_decimal_ll(ptr %m, i64 %whole)
  call void @seq_putc(ptr %m, i8 46)
  %small = icmp ult i64 %hundredths, 10
  br i1 %small, label %pad, label %print
pad:
  call void @seq_putc(ptr %m, i8 48)
  br label %print
print:
  call void @seq_put_decimal_ull(ptr %m, i64 %hundredths)
  ret void
}

define void @seq_vprintf(ptr %m, ptr %fmt, ptr %args) #0 {
entry:
  br label %next
next:
  %at = phi ptr [ %fmt, %entry ], [ %after, %plain ], [ %after.directive, %resume ]
  %c = load i8, ptr %at
  %after = getelementptr i8, ptr %at, i64 1
  switch i8 %c, label %plain [ i8 0, label %done
                               i8 37, label %directive ]
plain:
  call void @seq_putc(ptr %m, i8 %c)
  br label %next
directive:
  %kind = load i8, ptr %after
  %after.directive = getelementptr i8, ptr %at, i64 2
  switch i8 %kind, label %literal [ i8 0, label %done
                                    i8 99, label %character
                                    i8 100, label %decimal
                                    i8 102, label %float
                                    i8 115, label %string ]
character:
  %c.wide = va_arg ptr %args, i32
  %c.arg = trunc i32 %c.wide to i8
  call void @seq_putc(ptr %m, i8 %c.arg)
  br label %resume
decimal:
  %d.arg = va_arg ptr %args, i32
  %d.wide = sext i32 %d.arg to i64
  call void @seq_put_decimal_ll(ptr %m, i64 %d.wide)
  br label %resume
float:
  %f.arg = va_arg ptr %args, double
  call void @seq_put_double(ptr %m, double %f.arg)
  br label %resume
string:
  %s.arg = va_arg ptr %args, ptr
  call void @seq_puts(ptr %m, ptr %s.arg)
  br label %resume
literal:
  call void @seq_putc(ptr %m, i8 %kind)
  br label %resume
resume:
  br label %next
done:
  ret void
}

; Returns the length of the text, which is cut to size - 1 and ends with NUL. size must not be 0.
define i32 @vscnprintf(ptr %buf, i64 %size, ptr %fmt, ptr %args) #0 {
  %m = alloca %struct.seq_file
  %m.size = getelementptr %struct.seq_file, ptr %m, i32 0, i32 1
  %m.count = getelementptr %struct.seq_file, ptr %m, i32 0, i32 2
  store ptr %buf, ptr %m
  store i64 %size, ptr %m.size
  store i64 0, ptr %m.count
  call void @seq_vprintf(ptr %m, ptr %fmt, ptr %args)
  %count = load i64, ptr %m.count
  %end = getelementptr i8, ptr %buf, i64 %count
  store i8 0, ptr %end
  %length = trunc i64 %count to i32
  ret i32 %length
}

define i32 @scnprintf(ptr %buf, i64 %size, ptr %fmt, ...) #0 {
  %args = alloca [24 x i8], align 8
  call void @llvm.va_start.p0(ptr %args)
  %length = call i32 @vscnprintf(ptr %buf, i64 %size, ptr %fmt, ptr %args)
  call void @llvm.va_end.p0(ptr %args)
  ret i32 %length
}

; ---------------------------------------------------------------------------------------------
; The log

define void @log_store(ptr %text, i32 %length) #0 {
entry:
  %task = call ptr @get_current()
  %count.at = getelementptr %struct.task_struct, ptr %task, i32 0, i32 13
  %first = load i64, ptr %count.at
  %n = zext i32 %length to i64
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %i.next, %body ]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %body, label %done
body:
  %from = getelementptr i8, ptr %text, i64 %i
  %c = load i8, ptr %from
  %place = add i64 %first, %i
  %slot = and i64 %place, 1023
  %to = getelementptr %struct.task_struct, ptr %task, i32 0, i32 21, i64 %slot
  store i8 %c, ptr %to
  %i.next = add i64 %i, 1
  br label %head
done:
  %last = add i64 %first, %n
  store i64 %last, ptr %count.at
  ret void
}

define i32 @vprintk(ptr %fmt, ptr %args) #0 {
  %text = alloca [128 x i8], align 16
  %length = call i32 @vscnprintf(ptr %text, i64 128, ptr %fmt, ptr %args)
  call void @log_store(ptr %text, i32 %length)
  ret i32 %length
}

define i32 @printk(ptr %fmt, ...) #0 {
  %args = alloca [24 x i8], align 8
  call void @llvm.va_start.p0(ptr %args)
  %length = call i32 @vprintk(ptr %fmt, ptr %args)
  call void @llvm.va_end.p0(ptr %args)
  ret i32 %length
}
