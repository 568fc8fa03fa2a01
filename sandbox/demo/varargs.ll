; Variable arguments. Formatted text knows %d (i32), %s, %f (double >= 0, two decimals), %c, %%.

@name_alice = constant [6 x i8] c"alice\00"
@name_bob = constant [4 x i8] c"bob\00"
@format_path = constant [21 x i8] c"/home/%s/docs/file%d\00"
@format_round = constant [42 x i8] c"round %d%c %s wrote %d of %d, load %f %%\0A\00"

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
  call void @seq_putc(ptr %m, i8 zeroext %c)
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
  call void @seq_putc(ptr %m, i8 zeroext %c.arg)
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
  call void @seq_putc(ptr %m, i8 zeroext %kind)
  br label %resume
resume:
  br label %next
done:
  ret void
}

define i32 @scnprintf(ptr %buf, i64 %size, ptr %fmt, ...) #0 {
  %args = alloca [24 x i8], align 8
  call void @llvm.va_start.p0(ptr %args)
  %length = call i32 @vscnprintf(ptr %buf, i64 %size, ptr %fmt, ptr %args)
  call void @llvm.va_end.p0(ptr %args)
  ret i32 %length
}

define i32 @printk(ptr %fmt, ...) #0 {
  %args = alloca [24 x i8], align 8
  call void @llvm.va_start.p0(ptr %args)
  %length = call i32 @vprintk(ptr %fmt, ptr %args)
  call void @llvm.va_end.p0(ptr %args)
  ret i32 %length
}

; The path of a round: one of eight names in the home of one of two people.
define i32 @demo_path(ptr %path, i64 %round, i32 %random) #0 {
  %odd = trunc i32 %random to i1
  %who = select i1 %odd, ptr @name_bob, ptr @name_alice
  %low = trunc i64 %round to i32
  %number = and i32 %low, 7
  %length = call i32 (ptr, i64, ptr, ...) @scnprintf(ptr %path, i64 64, ptr @format_path, ptr %who, i32 %number)
  ret i32 %length
}

define i32 @demo_log(i64 %round, ptr %path, i64 %written, i64 %count) #0 {
  %task = call ptr @get_current()
  %load.at = getelementptr %Task, ptr %task, i32 0, i32 7
  %load = load double, ptr %load.at
  %number = trunc i64 %round to i32
  %put = trunc i64 %written to i32
  %asked = trunc i64 %count to i32
  %length = call i32 (ptr, ...) @printk(ptr @format_round, i32 %number, i32 58, ptr %path, i32 %put, i32 %asked, double %load)
  ret i32 %length
}
