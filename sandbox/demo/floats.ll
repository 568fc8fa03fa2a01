; Floating point: the load average.

; An exponentially damped average: load * exp + active * (1 - exp).
define double @calc_load(double %load, double %exp, double %active) #0 {
  %old = fmul double %load, %exp
  %rest = fsub double 1.0, %exp
  %new = fmul double %active, %rest
  %sum = fadd double %old, %new
  ret double %sum
}

define void @calc_global_load(ptr %task) #0 {
  %load.at = getelementptr %Task, ptr %task, i32 0, i32 7
  %curr.at = getelementptr %Task, ptr %task, i32 0, i32 14
  %load = load double, ptr %load.at
  %curr = load i32, ptr %curr.at
  %running = add i32 %curr, 1
  %active = sitofp i32 %running to double
  %now = call double @calc_load(double %load, double 0.9200444146293233, double %active)
  store double %now, ptr %load.at
  ret void
}

define void @seq_put_double(ptr %m, double %value) #0 {
  %whole = fptosi double %value to i64
  %whole.f = sitofp i64 %whole to double
  %rest = fsub double %value, %whole.f
  %scaled = fmul double %rest, 100.0
  %hundredths = fptosi double %scaled to i64
  call void @seq_put_decimal_ll(ptr %m, i64 %whole)
  call void @seq_putc(ptr %m, i8 zeroext 46)
  %small = icmp ult i64 %hundredths, 10
  br i1 %small, label %pad, label %print
pad:
  call void @seq_putc(ptr %m, i8 zeroext 48)
  br label %print
print:
  call void @seq_put_decimal_ull(ptr %m, i64 %hundredths)
  ret void
}
