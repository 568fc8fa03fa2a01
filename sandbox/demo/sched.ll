; sched: who runs, the timer interrupt, the load average

; The number of the task that this thread runs as; 0 outside demo_main. This and get_current are
; called from everywhere, under the very functions that one wants to watch: notrace.
define i64 @current_nr() #1 {
entry:
  %me = load i64, ptr addrspace(257) null
  br label %head
head:
  %i = phi i64 [ 1, %entry ], [ %i.next, %body ]
  %more = icmp ult i64 %i, 16
  br i1 %more, label %body, label %none
body:
  %owner.at = getelementptr [16 x i64], ptr @task_owner, i64 0, i64 %i
  %owner = load atomic i64, ptr %owner.at monotonic, align 8
  %mine = icmp eq i64 %owner, %me
  %i.next = add i64 %i, 1
  br i1 %mine, label %found, label %head
found:
  ret i64 %i
none:
  ret i64 0
}

; The current task. Task 0 is set up when it is first asked for.
define ptr @get_current() #1 {
  %nr = call i64 @current_nr()
  %task = getelementptr [16 x %struct.task_struct], ptr @tasks, i64 0, i64 %nr
  %root.at = getelementptr %struct.task_struct, ptr @tasks, i32 0, i32 5
  %root = load ptr, ptr %root.at
  %unset = icmp eq ptr %root, null
  %direct = icmp eq i64 %nr, 0
  %first.time = and i1 %unset, %direct
  br i1 %first.time, label %set.up, label %done
set.up:
  call void @start_kernel(ptr %task)
  br label %done
done:
  ret ptr %task
}

; Takes a free task for this thread, waiting for one if need be; its number. A thread that runs
; as a task already (a signal handler inside demo_main) parks that one.
define i64 @copy_process(i64 %previous) #0 {
entry:
  %me = load i64, ptr addrspace(257) null
  br label %head
head:
  %i = phi i64 [ 1, %entry ], [ %i.next, %body ], [ 1, %wait ]
  %more = icmp ult i64 %i, 16
  br i1 %more, label %body, label %wait
wait:
  call void @llvm.x86.sse2.pause()
  br label %head
body:
  %owner.at = getelementptr [16 x i64], ptr @task_owner, i64 0, i64 %i
  %outcome = cmpxchg ptr %owner.at, i64 0, i64 %me acquire monotonic
  %taken = extractvalue { i64, i1 } %outcome, 1
  %i.next = add i64 %i, 1
  br i1 %taken, label %park, label %head
park:
  %nested = icmp ne i64 %previous, 0
  br i1 %nested, label %park.it, label %done
park.it:
  %previous.at = getelementptr [16 x i64], ptr @task_owner, i64 0, i64 %previous
  store atomic i64 1, ptr %previous.at release, align 8
  br label %done
done:
  ret i64 %i
}

define void @do_exit(i64 %nr, i64 %previous) #0 {
  %me = load i64, ptr addrspace(257) null
  %nested = icmp ne i64 %previous, 0
  br i1 %nested, label %resume, label %leave
resume:
  %previous.at = getelementptr [16 x i64], ptr @task_owner, i64 0, i64 %previous
  store atomic i64 %me, ptr %previous.at release, align 8
  br label %leave
leave:
  %owner.at = getelementptr [16 x i64], ptr @task_owner, i64 0, i64 %nr
  store atomic i64 0, ptr %owner.at release, align 8
  ret void
}

; ---------------------------------------------------------------------------------------------
; Scheduling: four entities, the one with the least vruntime (the first of equals) runs next

define void @sched_init(ptr %rq) #0 {
entry:
  %switches = getelementptr %struct.rq, ptr %rq, i32 0, i32 1
  store i32 0, ptr %rq
  store i32 0, ptr %switches
  br label %body
body:
  %i = phi i64 [ 0, %entry ], [ %i.next, %body ]
  %vruntime = getelementptr %struct.rq, ptr %rq, i32 0, i32 2, i64 %i, i32 0
  %weight = getelementptr %struct.rq, ptr %rq, i32 0, i32 2, i64 %i, i32 1
  %i.next = add i64 %i, 1
  %w = mul i64 %i.next, 512
  store i64 0, ptr %vruntime
  store i64 %w, ptr %weight
  %more = icmp ult i64 %i.next, 4
  br i1 %more, label %body, label %done
done:
  ret void
}

; Charges the running entity: vruntime += delta * 1024 / weight.
define void @update_curr(ptr %rq, i64 %delta) #0 {
  %curr = load i32, ptr %rq
  %vruntime.at = getelementptr %struct.rq, ptr %rq, i32 0, i32 2, i32 %curr, i32 0
  %weight.at = getelementptr %struct.rq, ptr %rq, i32 0, i32 2, i32 %curr, i32 1
  %vruntime = load i64, ptr %vruntime.at
  %weight = load i64, ptr %weight.at
  %scaled = mul i64 %delta, 1024
  %charge = udiv i64 %scaled, %weight
  %now = add i64 %vruntime, %charge
  store i64 %now, ptr %vruntime.at
  ret void
}

define i32 @pick_next_task(ptr %rq) #0 {
entry:
  %first.at = getelementptr %struct.rq, ptr %rq, i32 0, i32 2, i64 0, i32 0
  %first = load i64, ptr %first.at
  br label %body
body:
  %i = phi i64 [ 1, %entry ], [ %i.next, %body ]
  %best = phi i64 [ 0, %entry ], [ %best.next, %body ]
  %least = phi i64 [ %first, %entry ], [ %least.next, %body ]
  %at = getelementptr %struct.rq, ptr %rq, i32 0, i32 2, i64 %i, i32 0
  %vruntime = load i64, ptr %at
  %less = icmp ult i64 %vruntime, %least
  %best.next = select i1 %less, i64 %i, i64 %best
  %least.next = select i1 %less, i64 %vruntime, i64 %least
  %i.next = add i64 %i, 1
  %more = icmp ult i64 %i.next, 4
  br i1 %more, label %body, label %done
done:
  %pick = trunc i64 %best.next to i32
  ret i32 %pick
}

define void @__schedule(ptr %rq, i64 %delta) #0 {
  call void @update_curr(ptr %rq, i64 %delta)
  %curr = load i32, ptr %rq
  %next = call i32 @pick_next_task(ptr %rq)
  %same = icmp eq i32 %next, %curr
  br i1 %same, label %done, label %switch
switch:
  %switches.at = getelementptr %struct.rq, ptr %rq, i32 0, i32 1
  %switches = load i32, ptr %switches.at
  %more = add i32 %switches, 1
  store i32 %more, ptr %switches.at
  store i32 %next, ptr %rq
  br label %done
done:
  ret void
}

; Gives the processor away after a slice of 3000; returns who has it now.
define i32 @schedule() #0 {
  %task = call ptr @get_current()
  %rq = getelementptr %struct.task_struct, ptr %task, i32 0, i32 14
  call void @__schedule(ptr %rq, i64 3000)
  %curr = load i32, ptr %rq
  ret i32 %curr
}

; ---------------------------------------------------------------------------------------------
; The timer

; An exponentially damped average: load * exp + active * (1 - exp).
define double @calc_load(double %load, double %exp, double %active) #0 {
  %old = fmul double %load, %exp
  %rest = fsub double 1.0, %exp
  %new = fmul double %active, %rest
  %sum = fadd double %old, %new
  ret double %sum
}

define void @calc_global_load(ptr %task) #0 {
  %load.at = getelementptr %struct.task_struct, ptr %task, i32 0, i32 7
  %curr.at = getelementptr %struct.task_struct, ptr %task, i32 0, i32 14
  %load = load double, ptr %load.at
  %curr = load i32, ptr %curr.at
  %running = add i32 %curr, 1
  %active = sitofp i32 %running to double
  %now = call double @calc_load(double %load, double 0.9200444146293233, double %active)
  store double %now, ptr %load.at
  ret void
}

define void @tick_periodic(ptr %task) #0 {
  %before = atomicrmw add ptr @jiffies, i64 1 monotonic
  %ticks.at = getelementptr %struct.task_struct, ptr %task, i32 0, i32 6
  %ticks = load i64, ptr %ticks.at
  %now = add i64 %ticks, 1
  store i64 %now, ptr %ticks.at
  call void @calc_global_load(ptr %task)
  ret void
}

; The interrupt's way in: counts the nesting, ticks, and reschedules when it leaves the last.
define void @asm_sysvec_apic_timer_interrupt() #0 {
  %task = call ptr @get_current()
  %count.at = getelementptr %struct.task_struct, ptr %task, i32 0, i32 9
  %count = load i32, ptr %count.at
  %inside = add i32 %count, 65536
  store i32 %inside, ptr %count.at
  call void @tick_periodic(ptr %task)
  store i32 %count, ptr %count.at
  %last = icmp eq i32 %count, 0
  br i1 %last, label %resched, label %done
resched:
  %curr = call i32 @schedule()
  br label %done
done:
  ret void
}

; The task's own time: 250 ticks a second. A struct returned in two registers.
define %struct.timespec64 @current_time(ptr %inode) #0 {
  %task = call ptr @get_current()
  %ticks.at = getelementptr %struct.task_struct, ptr %task, i32 0, i32 6
  %ticks = load i64, ptr %ticks.at
  %sec = udiv i64 %ticks, 250
  %part = urem i64 %ticks, 250
  %nsec = mul i64 %part, 4000000
  %with.sec = insertvalue %struct.timespec64 poison, i64 %sec, 0
  %time = insertvalue %struct.timespec64 %with.sec, i64 %nsec, 1
  ret %struct.timespec64 %time
}

; A time of day minus an earlier one. Structs as arguments, each in two registers.
define %struct.timespec64 @timespec64_sub(%struct.timespec64 %lhs, %struct.timespec64 %rhs) #0 {
  %lhs.sec = extractvalue %struct.timespec64 %lhs, 0
  %lhs.nsec = extractvalue %struct.timespec64 %lhs, 1
  %rhs.sec = extractvalue %struct.timespec64 %rhs, 0
  %rhs.nsec = extractvalue %struct.timespec64 %rhs, 1
  %sec = sub i64 %lhs.sec, %rhs.sec
  %nsec = sub i64 %lhs.nsec, %rhs.nsec
  %borrow = icmp slt i64 %nsec, 0
  %sec.less = sub i64 %sec, 1
  %nsec.more = add i64 %nsec, 1000000000
  %sec.result = select i1 %borrow, i64 %sec.less, i64 %sec
  %nsec.result = select i1 %borrow, i64 %nsec.more, i64 %nsec
  %with.sec = insertvalue %struct.timespec64 poison, i64 %sec.result, 0
  %time = insertvalue %struct.timespec64 %with.sec, i64 %nsec.result, 1
  ret %struct.timespec64 %time
}
