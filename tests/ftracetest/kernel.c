/* Functions, data and tracepoints that the tests expect of a kernel. machine.py calls them when real processes fork, run and open files. */

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long u64;

struct qstr { union { struct { u32 hash; u32 len; }; u64 hash_len; }; const u8 *name; };
struct dentry { u32 d_flags; u32 d_seq; void *d_hash[2]; struct dentry *d_parent; struct qstr d_name; };
struct path { void *mnt; struct dentry *dentry; };
struct file { u64 f_count; u64 f_mode; struct path f_path; };
struct kmem_cache { u32 size; u32 object_size; };
struct filename { const char *name; int refcnt; };
struct list_head { struct list_head *next, *prev; };
struct sched_entity { u64 load; struct list_head group_node; };
struct task_struct { int pid; int prio; struct sched_entity se; };

#define CALL __attribute__((noinline, noipa))
#define NOTRACE __attribute__((no_instrument_function, patchable_function_entry(0, 0)))

static volatile long sink;
struct task_struct init_task = { 0, 120, { 0, { 0, 0 } } };
char linux_proc_banner[512] = "%s version %s (stand-in@kernel) (cc) %s\n";
long _sdata = 1;

/* The prototypes of tracepoints. */
#define PROBESTUB(name, ...) CALL void __probestub_##name(void *__data, __VA_ARGS__) { sink = __LINE__; }
PROBESTUB(kfree, u64 call_site, const void *ptr)
PROBESTUB(kmem_cache_alloc, u64 call_site, const void *ptr, struct kmem_cache *s, u32 gfp_flags, int node)
PROBESTUB(sched_wakeup, struct task_struct *p)

/* Functions that are named and seldom or never called. */
#define NAMED(name) CALL long name(long value) { return sink = value; }
CALL long first_function(long value) { return sink = value; }
CALL long tracefs_create_dir(const char *name, void *parent) { return sink = (long)name + (long)parent; }
NAMED(tracefs_create_file)
NAMED(inet_csk_accept)
NAMED(sys_open_tree)
NAMED(__x64_sys_chdir)
NAMED(do_sys_open)
NAMED(sched_tick)
CALL long vfs_symlink(void *idmap, void *dir, void *dentry, const char *oldname) { return sink = (long)oldname; }
CALL struct filename *getname_flags(const char *filename, int flags) { sink = flags; return 0; }
CALL long dotted(long value) __asm__("copy_process.isra.0");
CALL long dotted(long value) { return sink = value; }
static CALL long name_show(long value) { return sink = value; }
CALL long any_name_show(long value) { return name_show(value) + 1; }

CALL void _raw_spin_lock(void *lock) { sink = (long)lock; }
CALL void _raw_spin_unlock(void *lock) { sink = (long)lock; }
NAMED(mutex_trylock)
NAMED(_raw_spin_trylock)
NAMED(try_to_take_rt_lock)
NAMED(clk_core_unlock)
NAMED(clk_prepare_lock)
CALL long proc_reg_write(void *file, const char *buf, u64 count, long *pos) { sink = count; return -5; }
CALL void mutex_lock(void *lock) { sink = (long)lock; }
CALL void mutex_unlock(void *lock) { sink = (long)lock; }
CALL void pin_user_pages_unlocked(void) { sink = 1; }
CALL void rcu_note_context_switch(int preempt) { sink = preempt; }
CALL void __rcu_read_lock(void) { sink = 1; }
CALL void __rcu_read_unlock(void) { sink = 1; }

CALL void *kmalloc_stand_in(u64 size) { void *self = (void *)kmalloc_stand_in;  return self; }
CALL void *kmem_cache_alloc(struct kmem_cache *s, int gfpflags) { sink = gfpflags; return s; }
CALL void kmem_cache_free(struct kmem_cache *s, void *objp) {  sink = 1; }
CALL void kfree(const void *object) { sink = (long)object; }
CALL void dput(struct dentry *dentry) { sink = (long)dentry; kmem_cache_free(0, dentry); sink = 2; }
CALL long vfs_read(struct file *file, char *buf, u64 count, long *pos) { __rcu_read_lock(); __rcu_read_unlock(); return sink = count; }
CALL int vfs_open(const struct path *path, struct file *file) { kmalloc_stand_in(40); sink = 3; return 0; }
CALL void putname(struct filename *name) { kmem_cache_free(0, name); sink = 2; kfree(name); }

CALL void schedule(void) { rcu_note_context_switch(0); _raw_spin_lock(&init_task); _raw_spin_unlock(&init_task); sink = 4; }
CALL void do_exit(long code) { mutex_lock(&init_task); mutex_unlock(&init_task); sink = code; }
CALL int do_execveat_common(int fd, struct filename *filename, u64 argv) { putname(filename); return sink = 0; }

/* 256 bytes and more, whatever an instruction is long. */
CALL int kernel_clone(void *args)
{
    u64 sum = (u64)args;
    kmalloc_stand_in(512);
#define STEP sum = sum * 0x9e3779b97f4a7c15ul + (sum >> 29); sink = sum;
    STEP STEP STEP STEP STEP STEP STEP STEP STEP STEP STEP STEP
    return sum & 0x7fff;
}

/* What machine.py calls. */
NOTRACE CALL void opened(struct path *path, struct file *file, struct dentry *dentry)
{
    vfs_open(path, file);
    vfs_read(file, 0, 4096, 0);
    dput(dentry);
    putname(0);
    schedule();
}

/* An event is recorded: `record` is fprobe's function, which gets the place of its caller. */
NOTRACE CALL long trace_event(void (*record)(void *, u64, void *, u64, u64, u64, u64), void *target, u64 type, void *data, u64 size)
{
    u64 ip, sp, bp;
    __asm__ volatile("lea 0(%%rip), %0\n mov %%rsp, %1\n mov %%rbp, %2" : "=r"(ip), "=r"(sp), "=r"(bp));
    record(target, type, data, size, ip, sp, bp);
    return sink;
}
NOTRACE CALL long schedule_event(void (*record)(void *, u64, void *, u64, u64, u64, u64), void *target, u64 type, void *data, u64 size)
{
    return trace_event(record, target, type, data, size) + 1;
}

#define FILL(n) CALL long fill_##n(long value) { return sink = value + n; }
#define TEN(n) FILL(n##0) FILL(n##1) FILL(n##2) FILL(n##3) FILL(n##4) FILL(n##5) FILL(n##6) FILL(n##7) FILL(n##8) FILL(n##9)
#define HUNDRED(n) TEN(n##0) TEN(n##1) TEN(n##2) TEN(n##3) TEN(n##4) TEN(n##5) TEN(n##6) TEN(n##7) TEN(n##8) TEN(n##9)
HUNDRED(1) HUNDRED(2) HUNDRED(3)
