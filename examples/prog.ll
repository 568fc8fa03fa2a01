; A program to probe: fprobe trace 'func*' --program examples/prog.ll --call main 10

define i64 @func_square(i64 %n) {
  %square = mul i64 %n, %n
  ret i64 %square
}

define i64 @func_sum(i64 %n) {
  %done = icmp slt i64 %n, 1
  br i1 %done, label %none, label %more
none:
  ret i64 0
more:
  %square = call i64 @func_square(i64 %n)
  %rest.n = sub i64 %n, 1
  %rest = call i64 @func_sum(i64 %rest.n)
  %sum = add i64 %square, %rest
  ret i64 %sum
}

define i64 @main(i64 %n) {
  %sum = call i64 @func_sum(i64 %n)
  ret i64 %sum
}
