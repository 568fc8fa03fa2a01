/* The functions and data of a kernel that the transcripts name (FORMAT.md), with the same prototypes. */

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long u64;

typedef struct { u32 val; } kuid_t;
typedef struct { long counter; } atomic_long_t;
struct sockaddr { u16 sa_family; union { u8 sa_data_min[14]; struct { struct { } __empty; u8 sa_data[]; }; }; };
struct qstr { union { struct { u32 hash; u32 len; }; u64 hash_len; }; const u8 *name; };
struct dentry { u32 d_flags; u32 d_seq; void *d_hash[2]; struct dentry *d_parent; struct qstr d_name; struct inode *d_inode; };
struct path { void *mnt; struct dentry *dentry; };
struct inode {
    u16 i_mode;
    u16 i_opflags;
    kuid_t i_uid;
    kuid_t i_gid;
    u32 i_flags;
    void *i_acl[2];
    const void *i_op;
    void *i_sb;
    void *i_mapping;
    void *i_security;
    u64 i_ino;
    u32 i_nlink;
    u32 i_rdev;
    long i_size;
};
struct file_operations { void *owner; u32 fop_flags; void *llseek; };
struct file {
    atomic_long_t f_count;
    u32 f_lock;
    u32 f_mode;
    const struct file_operations *f_op;
    void *f_mapping;
    void *private_data;
    struct inode *f_inode;
    u32 f_flags;
    u32 f_iocb_flags;
    const void *f_cred;
    struct path f_path;
    long f_pos;
};
struct open_how { u64 flags; u64 mode; u64 resolve; };

struct task_struct { u64 flags; u64 state; u64 stack; u8 comm[16]; int prio; int pid; int tgid; struct task_struct *parent; };
struct task_struct init_task = { 2, 0, 0, "swapper" };
struct linux_binprm { void *mm; int argc; int envc; const u8 *filename; const u8 *interp; };
const char linux_banner[] = "Linux version 6.12.95 (stand-in)\n";

#define EBADF 9
#define O_LARGEFILE 0100000
#define EAFNOSUPPORT 97
#define CALL __attribute__((noinline, noipa))
#define USED __attribute__((used))

static volatile long sink;

CALL long move_addr_to_kernel(void *uaddr, int ulen) { return sink = (long)uaddr + ulen; }
CALL long sockfd_lookup_light(int fd) { sink = fd; return 0; }

/* What __sys_socketpair and __sys_listen call. */
#define LEAF(name) CALL void name(void) { sink = __LINE__; }
LEAF(alloc_fd)
LEAF(_raw_spin_lock)
LEAF(_raw_spin_unlock)
LEAF(security_socket_create)
LEAF(sock_alloc)
LEAF(__rcu_read_lock)
LEAF(__rcu_read_unlock)
LEAF(try_module_get)
LEAF(module_put)
LEAF(unix_create)
LEAF(security_socket_post_create)
LEAF(bpf_lsm_socket_socketpair)
LEAF(init_peercred)
LEAF(alloc_file_pseudo)
LEAF(stream_open)
LEAF(fd_install)
CALL long fdget(int fd) { sink = fd; return 0; }
CALL void get_unused_fd_flags(void) { alloc_fd(); sink = 0; }
CALL void put_unused_fd(void) { _raw_spin_lock(); _raw_spin_unlock(); sink = 0; }
CALL int __sock_create(int family)
{
    if (family == 99)
        return -EAFNOSUPPORT;
    security_socket_create();
    sock_alloc();
    __rcu_read_lock();
    try_module_get();
    __rcu_read_unlock();
    unix_create();
    try_module_get();
    module_put();
    security_socket_post_create();
    sink = 0;
    return 0;
}
CALL void security_socket_socketpair(void) { bpf_lsm_socket_socketpair(); sink = 0; }
CALL void unix_socketpair(void) { init_peercred(); init_peercred(); sink = 0; }
CALL void sock_alloc_file(void) { alloc_file_pseudo(); stream_open(); sink = 0; }

/* Functions that are named and not called. */
#define NAMED(name) CALL long name(long value) { return sink = value; }
NAMED(__sys_setregid)
NAMED(__sys_setgid)
NAMED(__sys_setreuid)
NAMED(__sys_setuid)
NAMED(__sys_setresuid)
NAMED(__sys_setresgid)
NAMED(__sys_setfsuid)
NAMED(__sys_setfsgid)
NAMED(__sys_bpf)
NAMED(__sys_socket_file)

CALL int __sys_socket(int family, int type, int protocol)
{
    sink = type + protocol;
    return family == 99 ? -EAFNOSUPPORT : 3;
}

CALL int __sys_socketpair(int family, int type, int protocol, int *usockvec)
{
    sink = type + protocol;
    get_unused_fd_flags();
    get_unused_fd_flags();
    if (__sock_create(family)) {
        put_unused_fd();
        put_unused_fd();
        return -EAFNOSUPPORT;
    }
    usockvec[0] = 3;
    usockvec[1] = 4;
    __sock_create(family);
    security_socket_socketpair();
    unix_socketpair();
    sock_alloc_file();
    sock_alloc_file();
    fd_install();
    fd_install();
    return 0;
}

NAMED(__sys_bind_socket)

CALL int __sys_bind(int fd, struct sockaddr *umyaddr, int addrlen)
{
    sink = (long)umyaddr + addrlen;
    return sockfd_lookup_light(fd) ? 0 : -EBADF;
}

NAMED(__sys_listen_socket)

CALL int __sys_listen(int fd, int backlog)
{
    sink = backlog;
    return fdget(fd) ? 0 : -EBADF;
}

CALL int __sys_accept4(int fd, struct sockaddr *upeer_sockaddr, int *upeer_addrlen, int flags)
{
    return sink = fd + flags + (long)upeer_sockaddr + (long)upeer_addrlen;
}

NAMED(__sys_connect_file)

CALL int __sys_connect(int fd, struct sockaddr *uservaddr, int addrlen) { return sink = fd + addrlen + (long)uservaddr; }

NAMED(__sys_getsockname)
NAMED(__sys_getpeername)

CALL int __sys_sendto(int fd, void *buff, u64 len, u32 flags, struct sockaddr *addr, int addr_len)
{
    return sink = fd + len + flags + addr_len + (long)buff + (long)addr;
}

CALL int __sys_recvfrom(int fd, void *ubuf, u64 size, u32 flags, struct sockaddr *addr, int *addr_len)
{
    return sink = fd + size + flags + (long)ubuf + (long)addr + (long)addr_len;
}

CALL int __sys_setsockopt(int fd, int level, int optname, char *user_optval, int optlen)
{
    return sink = fd + level + optname + optlen + (long)user_optval;
}

CALL int __sys_getsockopt(int fd, int level, int optname, char *optval, int *optlen)
{
    return sink = fd + level + optname + (long)optval + (long)optlen;
}

NAMED(__sys_shutdown_sock)

CALL int __sys_shutdown(int fd, int how)
{
    sink = how;
    return sockfd_lookup_light(fd) ? 0 : -EBADF;
}

NAMED(__sys_sendmsg_sock)
NAMED(__sys_sendmsg)
NAMED(__sys_sendmmsg)
NAMED(__sys_recvmsg_sock)
NAMED(__sys_recvmsg)
NAMED(__sys_recvmmsg)

CALL int vfs_open(const struct path *path, struct file *file)
{
    sink = (long)path;
    file->f_mode = 1;
    return 0;
}

CALL long vfs_read(struct file *file, char *buf, u64 count, long *pos)
{
    sink = (long)file + (long)buf + (long)pos;
    return count;
}

CALL long vfs_write(struct file *file, const char *buf, u64 count, long *pos)
{
    sink = (long)file + (long)buf + (long)pos;
    return count;
}

NAMED(name_show)
CALL void kfree(const void *object) { sink = (long)object; }
CALL long ksys_read(u32 fd, char *buf, u64 count) { return sink = fd + count + (long)buf; }
CALL long ksys_write(u32 fd, const char *buf, u64 count) { return sink = fd + count + (long)buf; }
CALL struct file *do_filp_open(int dfd, void *pathname, const void *op)
{
    sink = dfd + (long)op;
    return pathname;
}
CALL long do_sys_open(int dfd, const char *filename, int flags, u16 mode) { return sink = dfd + flags + mode + (long)filename; }
CALL long schedule_timeout(long timeout) { return sink = timeout; }
CALL int wake_up_process(struct task_struct *p) { return sink = (long)p; }
CALL void msleep(u32 msecs) { sink = msecs; }
CALL long kernel_clone(void *args) { return sink = (long)args; }
CALL void do_exit(long code) { sink = code; }
CALL void schedule(void) { sink = 0; }

/* What the next open returns: the machine sets it. */
volatile long open_result = -2;
CALL long do_sys_openat2(int dfd, char *filename, struct open_how *how)
{
    sink = dfd + (long)how;
    return filename ? open_result : -14;
}

/* System calls, as they come to these functions: their names are in stack traces. */
struct pt_regs { u64 r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss; };
#define SYSCALL(name) CALL long __x64_sys_##name(const struct pt_regs *regs)
SYSCALL(socket) { return __sys_socket((int)regs->di, (int)regs->si, (int)regs->dx) + sink * 0; }
SYSCALL(socketpair) { return __sys_socketpair((int)regs->di, (int)regs->si, (int)regs->dx, (int *)regs->r10) + sink * 0; }
SYSCALL(bind) { return __sys_bind((int)regs->di, (struct sockaddr *)regs->si, (int)regs->dx) + sink * 0; }
SYSCALL(listen) { return __sys_listen((int)regs->di, (int)regs->si) + sink * 0; }
SYSCALL(openat)
{
    struct open_how how = { (int)regs->dx | O_LARGEFILE, regs->r10, 0 };
    return do_sys_openat2((int)regs->di, (char *)regs->si, &how) + sink * 0;
}

#define UNSEEN __attribute__((noinline, noipa, patchable_function_entry(0, 0)))

UNSEEN long do_syscall_64(struct pt_regs *regs, int number)
{
    switch (number) {
    case 41: return __x64_sys_socket(regs) + sink * 0;
    case 49: return __x64_sys_bind(regs) + sink * 0;
    case 50: return __x64_sys_listen(regs) + sink * 0;
    case 53: return __x64_sys_socketpair(regs) + sink * 0;
    default: return __x64_sys_openat(regs) + sink * 0;
    }
}

UNSEEN long entry_SYSCALL_64_after_hwframe(int number, long a, long b, long c, long d)
{
    struct pt_regs regs = { .di = a, .si = b, .dx = c, .r10 = d, .orig_ax = number };
    return do_syscall_64(&regs, number) + sink * 0;
}

/* The stubs of tracepoints, whose parameters lines t can name. */
#define STUB(name, ...) CALL void __probestub_##name(void *__data, __VA_ARGS__) { sink = (long)__data; }
STUB(sched_switch, _Bool preempt, struct task_struct *prev, struct task_struct *next, u32 prev_state)
STUB(sched_wakeup, struct task_struct *p)
STUB(sched_process_exec, struct task_struct *p, int old_pid, struct linux_binprm *bprm)
STUB(sched_process_exit, struct task_struct *p)
STUB(sched_process_fork, struct task_struct *parent, struct task_struct *child)

/* What a kernel does not let be probed. */
CALL long notifier_call_chain(long value) { return sink = value; }
CALL long kprobe_dispatcher(long value) { return sink = value; }
CALL long preempt_schedule(long value) { return sink = value; }
CALL long do_int3(long value) { return sink = value; }

/* The text behind them: instructions of ten bytes, then of one. */
__attribute__((naked)) void other_text(void)
{
    __asm__(".rept 4000\nmovabsq $0x1122334455667788, %rax\n.endr\n"
            ".rept 120000\nnop\n.endr\nret\n");
}
