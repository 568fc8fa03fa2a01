; main: setting up, and demo_main, which puts it all to work

@root_name = constant [2 x i8] c"/\00"
@path_dev = constant [5 x i8] c"/dev\00"
@path_dev_zero = constant [10 x i8] c"/dev/zero\00"
@path_home = constant [6 x i8] c"/home\00"
@path_alice = constant [12 x i8] c"/home/alice\00"
@path_alice_docs = constant [17 x i8] c"/home/alice/docs\00"
@path_bob = constant [10 x i8] c"/home/bob\00"
@path_bob_docs = constant [15 x i8] c"/home/bob/docs\00"
@path_missing = constant [17 x i8] c"/home/carol/docs\00"
@path_below_file = constant [12 x i8] c"/dev/zero/x\00"
@path_too_long = constant [71 x i8] c"/home/alice/docs/a/path/that/is/longer/than/a/kmalloc/object/is/at/all\00"
@name_alice = constant [6 x i8] c"alice\00"
@name_bob = constant [4 x i8] c"bob\00"
@format_path = constant [21 x i8] c"/home/%s/docs/file%d\00"
@format_round = constant [42 x i8] c"round %d%c %s wrote %d of %d, load %f %%\0A\00"

; ---------------------------------------------------------------------------------------------
; Setting up

; An empty system for a task: maps, root, and a few directories. The root comes before what asks
; for the current task, which may be calling us because there was none.
define void @start_kernel(ptr %task) #0 {
  call void @mm_init(ptr %task)
  %rq = getelementptr %struct.task_struct, ptr %task, i32 0, i32 14
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

; Everything free: 32 page frames, inodes, dentries and objects, 16 files. Bits of a map that
; stand for nothing are set for good.
define void @mm_init(ptr %task) #0 {
  %inodes = getelementptr %struct.task_struct, ptr %task, i32 0, i32 1
  %dentries = getelementptr %struct.task_struct, ptr %task, i32 0, i32 2
  %files = getelementptr %struct.task_struct, ptr %task, i32 0, i32 3
  %objects = getelementptr %struct.task_struct, ptr %task, i32 0, i32 4
  %mmap.base = getelementptr %struct.task_struct, ptr %task, i32 0, i32 8
  %ticks = getelementptr %struct.task_struct, ptr %task, i32 0, i32 6
  %load = getelementptr %struct.task_struct, ptr %task, i32 0, i32 7
  %preempt = getelementptr %struct.task_struct, ptr %task, i32 0, i32 9
  %head = getelementptr %struct.task_struct, ptr %task, i32 0, i32 10
  %written = getelementptr %struct.task_struct, ptr %task, i32 0, i32 11
  %sum = getelementptr %struct.task_struct, ptr %task, i32 0, i32 12
  %log.count = getelementptr %struct.task_struct, ptr %task, i32 0, i32 13
  %fds = getelementptr %struct.task_struct, ptr %task, i32 0, i32 15
  %log = getelementptr %struct.task_struct, ptr %task, i32 0, i32 21
  %populated = getelementptr %struct.task_struct, ptr %task, i32 0, i32 22
  store i64 -4294967296, ptr %task
  store i64 -4294967296, ptr %inodes
  store i64 -4294967296, ptr %dentries
  store i64 -65536, ptr %files
  store i64 -4294967296, ptr %objects
  store i64 4194304, ptr %mmap.base
  store i64 0, ptr %ticks
  store double 0.0, ptr %load
  store i32 0, ptr %preempt
  store i32 0, ptr %head
  store i64 0, ptr %written
  store i64 0, ptr %sum
  store i64 0, ptr %log.count
  store i64 0, ptr %populated
  store [16 x ptr] zeroinitializer, ptr %fds
  %left = call i64 @clear_user(ptr %log, i64 1024)
  ret void
}

define void @mount_root(ptr %task) #0 {
  %root.at = getelementptr %struct.task_struct, ptr %task, i32 0, i32 5
  %first = getelementptr %struct.task_struct, ptr %task, i32 0, i32 18
  store ptr %first, ptr %root.at
  %root = call ptr @d_alloc(ptr null, ptr @root_name, i64 4294967296)
  %inode = call ptr @new_inode(i32 16877)
  call void @d_instantiate(ptr %root, ptr %inode)
  ret void
}

; ---------------------------------------------------------------------------------------------
; Parts of a round. Each returns a hash over all that it saw.

; byte j = seed + 7 * j + j / 8
define void @fill_pattern(ptr %buf, i64 %count, i32 %seed) #0 {
entry:
  %first = zext i32 %seed to i64
  br label %head
head:
  %j = phi i64 [ 0, %entry ], [ %j.next, %body ]
  %more = icmp ult i64 %j, %count
  br i1 %more, label %body, label %done
body:
  %scaled = mul i64 %j, 7
  %eighth = lshr i64 %j, 3
  %sum = add i64 %first, %scaled
  %value = add i64 %sum, %eighth
  %c = trunc i64 %value to i8
  %at = getelementptr i8, ptr %buf, i64 %j
  store i8 %c, ptr %at
  %j.next = add i64 %j, 1
  br label %head
done:
  ret void
}

define i64 @sys1(i64 %nr, i64 %di) #0 {
  %result = call i64 @do_syscall(i64 %nr, i64 %di, i64 0, i64 0, i64 0, i64 0, i64 0)
  ret i64 %result
}

define i64 @sys3(i64 %nr, i64 %di, i64 %si, i64 %dx) #0 {
  %result = call i64 @do_syscall(i64 %nr, i64 %di, i64 %si, i64 %dx, i64 0, i64 0, i64 0)
  ret i64 %result
}

; Reads up to 512 bytes: the hash of how many and of their checksum.
define i64 @demo_read(i64 %fd, ptr %buf, i64 %count, i64 %hash) #0 {
  %address = ptrtoint ptr %buf to i64
  %got = call i64 @sys3(i64 0, i64 %fd, i64 %address, i64 %count)
  %bytes = call i64 @llvm.smax.i64(i64 %got, i64 0)
  %checksum = call i32 @csum_partial(ptr %buf, i64 %bytes, i32 0)
  %wide = zext i32 %checksum to i64
  %with.got = call i64 @hash_64(i64 %hash, i64 %got)
  %with.checksum = call i64 @hash_64(i64 %with.got, i64 %wide)
  ret i64 %with.checksum
}

; lseek, write, fsync, lseek from the end, read.
define i64 @demo_io(i64 %fd, i32 %random, ptr %buf, ptr %written) #0 {
  %address = ptrtoint ptr %buf to i64
  %count = call i64 @demo_count(i32 %random)
  %upper = lshr i32 %random, 20
  %place = urem i32 %upper, 4200
  %offset = zext i32 %place to i64
  call void @fill_pattern(ptr %buf, i64 %count, i32 %random)
  %pos = call i64 @sys3(i64 5, i64 %fd, i64 %offset, i64 0)
  %put = call i64 @sys3(i64 1, i64 %fd, i64 %address, i64 %count)
  %synced = call i64 @sys1(i64 7, i64 %fd)
  %back = call i64 @sys3(i64 5, i64 %fd, i64 -300, i64 2)
  store i64 %put, ptr %written
  %h1 = call i64 @hash_64(i64 0, i64 %pos)
  %h2 = call i64 @hash_64(i64 %h1, i64 %put)
  %h3 = call i64 @hash_64(i64 %h2, i64 %synced)
  %h4 = call i64 @hash_64(i64 %h3, i64 %back)
  %h5 = call i64 @demo_read(i64 %fd, ptr %buf, i64 512, i64 %h4)
  ret i64 %h5
}

; How much a round writes: 1 to 700 bytes.
define i64 @demo_count(i32 %random) #0 {
  %shifted = lshr i32 %random, 8
  %rest = urem i32 %shifted, 700
  %positive = add i32 %rest, 1
  %count = zext i32 %positive to i64
  ret i64 %count
}

; Every field of the status but mtime, and the file's age in nanoseconds.
define i64 @demo_stat(i64 %fd) #0 {
  %stat = alloca %struct.kstat
  store %struct.kstat zeroinitializer, ptr %stat
  %address = ptrtoint ptr %stat to i64
  %error = call i64 @sys3(i64 4, i64 %fd, i64 %address, i64 0)
  %size.at = getelementptr %struct.kstat, ptr %stat, i32 0, i32 1
  %blocks.at = getelementptr %struct.kstat, ptr %stat, i32 0, i32 2
  %mode.at = getelementptr %struct.kstat, ptr %stat, i32 0, i32 3
  %nlink.at = getelementptr %struct.kstat, ptr %stat, i32 0, i32 4
  %mtime.at = getelementptr %struct.kstat, ptr %stat, i32 0, i32 5
  %ino = load i64, ptr %stat
  %size = load i64, ptr %size.at
  %blocks = load i64, ptr %blocks.at
  %mode = load i32, ptr %mode.at
  %nlink = load i32, ptr %nlink.at
  %mtime = load %struct.timespec64, ptr %mtime.at
  %mode.wide = zext i32 %mode to i64
  %nlink.wide = zext i32 %nlink to i64
  %age = call i64 @demo_age(%struct.timespec64 %mtime)
  %h1 = call i64 @hash_64(i64 %error, i64 %ino)
  %h2 = call i64 @hash_64(i64 %h1, i64 %size)
  %h3 = call i64 @hash_64(i64 %h2, i64 %blocks)
  %h4 = call i64 @hash_64(i64 %h3, i64 %mode.wide)
  %h5 = call i64 @hash_64(i64 %h4, i64 %nlink.wide)
  %h6 = call i64 @hash_64(i64 %h5, i64 %age)
  ret i64 %h6
}

define i64 @demo_age(%struct.timespec64 %mtime) #0 {
  %now = call %struct.timespec64 @current_time(ptr null)
  %age = call %struct.timespec64 @timespec64_sub(%struct.timespec64 %now, %struct.timespec64 %mtime)
  %sec = extractvalue %struct.timespec64 %age, 0
  %nsec = extractvalue %struct.timespec64 %age, 1
  %sec.ns = mul i64 %sec, 1000000000
  %ns = add i64 %sec.ns, %nsec
  ret i64 %ns
}

; What must fail, each with its own error; then a hundred zeroes.
define i64 @demo_errors(ptr %buf) #0 {
  %missing = ptrtoint ptr @path_missing to i64
  %below.file = ptrtoint ptr @path_below_file to i64
  %too.long = ptrtoint ptr @path_too_long to i64
  %home = ptrtoint ptr @path_home to i64
  %zero = ptrtoint ptr @path_dev_zero to i64
  %e1 = call i64 @sys3(i64 2, i64 %missing, i64 66, i64 420)
  %e2 = call i64 @sys3(i64 2, i64 %below.file, i64 66, i64 420)
  %e3 = call i64 @sys3(i64 2, i64 %too.long, i64 66, i64 420)
  %e4 = call i64 @sys3(i64 2, i64 %home, i64 2, i64 0)
  %e5 = call i64 @sys1(i64 8, i64 %home)
  %e6 = call i64 @sys1(i64 3, i64 99)
  %e7 = call i64 @sys1(i64 1234, i64 0)
  %h1 = call i64 @hash_64(i64 0, i64 %e1)
  %h2 = call i64 @hash_64(i64 %h1, i64 %e2)
  %h3 = call i64 @hash_64(i64 %h2, i64 %e3)
  %h4 = call i64 @hash_64(i64 %h3, i64 %e4)
  %h5 = call i64 @hash_64(i64 %h4, i64 %e5)
  %h6 = call i64 @hash_64(i64 %h5, i64 %e6)
  %h7 = call i64 @hash_64(i64 %h6, i64 %e7)
  %fd = call i64 @sys3(i64 2, i64 %zero, i64 0, i64 0)
  %h8 = call i64 @demo_read(i64 %fd, ptr %buf, i64 100, i64 %h7)
  %closed = call i64 @sys1(i64 3, i64 %fd)
  %h9 = call i64 @hash_64(i64 %h8, i64 %closed)
  ret i64 %h9
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

; To be read, written and made; every fifth round truncated, every third appended to.
define i64 @demo_flags(i64 %round) #0 {
  %fifth = urem i64 %round, 5
  %third = urem i64 %round, 3
  %truncates = icmp eq i64 %fifth, 0
  %appends = icmp eq i64 %third, 0
  %trunc = select i1 %truncates, i64 512, i64 0
  %append = select i1 %appends, i64 1024, i64 0
  %base = or i64 %trunc, 66
  %flags = or i64 %base, %append
  ret i64 %flags
}

define i32 @demo_log(i64 %round, ptr %path, i64 %written, i64 %count) #0 {
  %task = call ptr @get_current()
  %load.at = getelementptr %struct.task_struct, ptr %task, i32 0, i32 7
  %load = load double, ptr %load.at
  %number = trunc i64 %round to i32
  %put = trunc i64 %written to i32
  %asked = trunc i64 %count to i32
  %length = call i32 (ptr, ...) @printk(ptr @format_round, i32 %number, i32 58, ptr %path, i32 %put, i32 %asked, double %load)
  ret i32 %length
}

; ---------------------------------------------------------------------------------------------
; Rounds

; A tick every fourth round; what must fail every eighth.
define i64 @demo_events(i64 %round, ptr %buf) #0 {
entry:
  %phase = and i64 %round, 7
  switch i64 %phase, label %done [ i64 0, label %tick
                                   i64 4, label %tick
                                   i64 7, label %errors ]
tick:
  call void @asm_sysvec_apic_timer_interrupt()
  br label %done
errors:
  %seen = call i64 @demo_errors(ptr %buf)
  br label %done
done:
  %hash = phi i64 [ 0, %entry ], [ 0, %tick ], [ %seen, %errors ]
  ret i64 %hash
}

; Unlinks in odd rounds, and in every sixth of them while the file is still open.
define i64 @demo_unlink(i64 %round, i64 %path, i1 %still_open) #0 {
  %sixth = urem i64 %round, 6
  %early = icmp eq i64 %sixth, 1
  %odd = trunc i64 %round to i1
  %wanted = select i1 %still_open, i1 %early, i1 %odd
  br i1 %wanted, label %unlink, label %skip
unlink:
  %error = call i64 @sys1(i64 8, i64 %path)
  ret i64 %error
skip:
  ret i64 1
}

; One round: open, write, read, fsync, stat, mmap, close, unlink.
define i64 @demo_round(i64 %round, ptr %state, ptr %buf) #0 {
  %path = alloca [64 x i8], align 16
  %written = alloca i64
  %random = call i32 @prandom_u32_state(ptr %state)
  %length = call i32 @demo_path(ptr %path, i64 %round, i32 %random)
  %flags = call i64 @demo_flags(i64 %round)
  %name = ptrtoint ptr %path to i64
  %h0 = call i64 @demo_events(i64 %round, ptr %buf)
  %fd = call i64 @sys3(i64 2, i64 %name, i64 %flags, i64 420)
  %io = call i64 @demo_io(i64 %fd, i32 %random, ptr %buf, ptr %written)
  %early = call i64 @demo_unlink(i64 %round, i64 %name, i1 true)
  %stat = call i64 @demo_stat(i64 %fd)
  %count = call i64 @demo_count(i32 %random)
  %page = and i64 %round, 7
  %offset = shl i64 %page, 9
  %map = call i64 @do_syscall(i64 6, i64 0, i64 %count, i64 3, i64 1, i64 %fd, i64 %offset)
  %closed = call i64 @sys1(i64 3, i64 %fd)
  %late = call i64 @demo_unlink(i64 %round, i64 %name, i1 false)
  %curr = call i64 @sys1(i64 10, i64 0)
  %put = load i64, ptr %written
  %logged = call i32 @demo_log(i64 %round, ptr %path, i64 %put, i64 %count)
  %logged.wide = zext i32 %logged to i64
  %h1 = call i64 @hash_64(i64 %h0, i64 %fd)
  %h2 = call i64 @hash_64(i64 %h1, i64 %io)
  %h3 = call i64 @hash_64(i64 %h2, i64 %early)
  %h4 = call i64 @hash_64(i64 %h3, i64 %stat)
  %h5 = call i64 @hash_64(i64 %h4, i64 %map)
  %h6 = call i64 @hash_64(i64 %h5, i64 %closed)
  %h7 = call i64 @hash_64(i64 %h6, i64 %late)
  %h8 = call i64 @hash_64(i64 %h7, i64 %curr)
  %h9 = call i64 @hash_64(i64 %h8, i64 %logged.wide)
  ret i64 %h9
}

; The hash over what is left behind: free blocks and inodes, blocks in use (counted by walking the
; tree), what was written out, the mappings, the log, the load average's bits, the switches.
define i64 @demo_summary(ptr %task, i64 %hash) #0 {
  %statfs = alloca %struct.kstatfs
  %root.at = getelementptr %struct.task_struct, ptr %task, i32 0, i32 5
  %load.at = getelementptr %struct.task_struct, ptr %task, i32 0, i32 7
  %written.at = getelementptr %struct.task_struct, ptr %task, i32 0, i32 11
  %sum.at = getelementptr %struct.task_struct, ptr %task, i32 0, i32 12
  %switches.at = getelementptr %struct.task_struct, ptr %task, i32 0, i32 14, i32 1
  %log = getelementptr %struct.task_struct, ptr %task, i32 0, i32 21
  %populated.at = getelementptr %struct.task_struct, ptr %task, i32 0, i32 22
  %bfree.at = getelementptr %struct.kstatfs, ptr %statfs, i32 0, i32 3
  %ffree.at = getelementptr %struct.kstatfs, ptr %statfs, i32 0, i32 5
  %statfs.address = ptrtoint ptr %statfs to i64
  %slash = ptrtoint ptr @root_name to i64
  %fd = call i64 @sys3(i64 2, i64 %slash, i64 0, i64 0)
  %error = call i64 @sys3(i64 9, i64 %fd, i64 %statfs.address, i64 0)
  %closed = call i64 @sys1(i64 3, i64 %fd)
  %root = load ptr, ptr %root.at
  %blocks = call i64 @simple_du(ptr %root)
  %log.sum = call i32 @csum_partial(ptr %log, i64 1024, i32 0)
  %log.wide = zext i32 %log.sum to i64
  %bfree = load i64, ptr %bfree.at
  %ffree = load i64, ptr %ffree.at
  %written = load i64, ptr %written.at
  %disk = load i64, ptr %sum.at
  %populated = load i64, ptr %populated.at
  %load = load i64, ptr %load.at
  %switches = load i32, ptr %switches.at
  %switches.wide = zext i32 %switches to i64
  %h1 = call i64 @hash_64(i64 %hash, i64 %bfree)
  %h2 = call i64 @hash_64(i64 %h1, i64 %ffree)
  %h3 = call i64 @hash_64(i64 %h2, i64 %blocks)
  %h4 = call i64 @hash_64(i64 %h3, i64 %written)
  %h5 = call i64 @hash_64(i64 %h4, i64 %disk)
  %h6 = call i64 @hash_64(i64 %h5, i64 %populated)
  %h7 = call i64 @hash_64(i64 %h6, i64 %log.wide)
  %h8 = call i64 @hash_64(i64 %h7, i64 %load)
  %h9 = call i64 @hash_64(i64 %h8, i64 %switches.wide)
  ret i64 %h9
}

; All rounds, then the summary. Its frame holds the buffer.
define i64 @demo_run(ptr %task, i64 %n) #0 {
entry:
  %state = alloca i64
  %buf = alloca [1024 x i8], align 16
  store i64 -7046029254386353131, ptr %state
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %i.next, %body ]
  %hash = phi i64 [ 0, %entry ], [ %hash.next, %body ]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %body, label %done
body:
  %round = call i64 @demo_round(i64 %i, ptr %state, ptr %buf)
  %hash.next = call i64 @hash_64(i64 %hash, i64 %round)
  %i.next = add i64 %i, 1
  br label %head
done:
  %result = call i64 @demo_summary(ptr %task, i64 %hash)
  ret i64 %result
}

; n rounds (none if n <= 0) in a file system of its own; the checksum depends on n alone. Any
; number of threads may call it at once: 15 run, the others wait. A signal handler may call it too.
define i64 @demo_main(i64 %n) #0 {
  %previous = call i64 @current_nr()
  %nr = call i64 @copy_process(i64 %previous)
  %task = getelementptr [16 x %struct.task_struct], ptr @tasks, i64 0, i64 %nr
  call void @start_kernel(ptr %task)
  %checksum = call i64 @demo_run(ptr %task, i64 %n)
  call void @do_exit(i64 %nr, i64 %previous)
  ret i64 %checksum
}
