/* Calls of count(), where only a breakpoint fits, with every signal blocked in the ways of a program. */
#define _GNU_SOURCE
#include <errno.h>
#include <execinfo.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

__asm__(".text\n.globl count\n.type count,@function\n"
        "count: push %rbx\n1: mov $5,%eax\n dec %rdi\n jnz 1b\n pop %rbx\n ret\n.size count,.-count\n");
long count(long n);

static volatile long seen;
static long other;
static sigset_t all;
static void handler(int number) { (void)number; count(5); seen++; }
static void install(int number, int full) {
    struct sigaction a = {.sa_handler = handler};
    if (full) sigfillset(&a.sa_mask);
    sigaction(number, &a, 0);
}
/* The three signals that decide, of a set: TRAP, USR1 and USR2. */
static long bits(const sigset_t *set) {
    return sigismember(set, SIGTRAP) | sigismember(set, SIGUSR1) << 1 | sigismember(set, SIGUSR2) << 2;
}
static long now(void) { sigset_t set; pthread_sigmask(SIG_BLOCK, 0, &set); return bits(&set); }

void before(void) { sigfillset(&all); install(SIGUSR2, 1); }
long by_earlier_action(void) {
    struct sigaction a;
    seen = 0; raise(SIGUSR2); sigaction(SIGUSR2, 0, &a);
    return bits(&a.sa_mask) << 8 | seen;
}
long by_action(void) {
    struct sigaction a;
    seen = 0; install(SIGUSR1, 1); raise(SIGUSR1); sigaction(SIGUSR1, 0, &a);
    long full = bits(&a.sa_mask);
    install(SIGUSR1, 0); sigaction(SIGUSR1, 0, &a);
    return bits(&a.sa_mask) << 16 | full << 8 | seen;
}
long by_mask(void) {
    sigset_t old;
    pthread_sigmask(SIG_BLOCK, &all, &old); count(5); long inner = now();
    sigset_t two; sigemptyset(&two); sigaddset(&two, SIGTRAP); sigaddset(&two, SIGUSR1);
    pthread_sigmask(SIG_UNBLOCK, &two, 0); long less = now();
    sigprocmask(SIG_BLOCK, &two, 0); count(5); long more = now();
    sigprocmask(SIG_SETMASK, &old, &two);
    return now() << 24 | bits(&two) << 16 | more << 12 | less << 8 | inner << 4 | bits(&old);
}
static void *body(void *result) { count(5); *(long *)result = now(); return 0; }
long by_thread(void) {
    sigset_t old; pthread_t thread; long result = -1;
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_create(&thread, 0, body, &result); pthread_join(thread, 0);
    pthread_sigmask(SIG_SETMASK, &old, 0);
    pthread_create(&thread, 0, body, &other); pthread_join(thread, 0);
    return other << 4 | result;
}
/* A handler with an empty sa_mask, in waits whose mask has all other signals. */
static long waited(int way) {
    sigset_t most = all, old, one; struct timespec time = {5, 0};
    sigdelset(&most, SIGUSR1); sigemptyset(&one); sigaddset(&one, SIGUSR1);
    install(SIGUSR1, 0); pthread_sigmask(SIG_BLOCK, &one, &old); seen = 0; raise(SIGUSR1);
    int result = -2, pollfd;
    if (way == 0) result = sigsuspend(&most);
    if (way == 1) result = ppoll(0, 0, &time, &most);
    if (way == 2) result = pselect(0, 0, 0, 0, &time, &most);
    if (way == 3) { struct epoll_event e; pollfd = epoll_create(1); result = epoll_pwait(pollfd, &e, 1, 5000, &most); close(pollfd); }
    long error = result == -1 ? errno : 0;
    pthread_sigmask(SIG_SETMASK, &old, 0);
    return error << 4 | seen;
}
long by_sigsuspend(void) { return waited(0); }
long by_ppoll(void) { return waited(1); }
long by_pselect(void) { return waited(2); }
long by_epoll(void) { return waited(3); }
static ucontext_t main_context, other_context;
static char stack[1 << 16];
static void entered(void) { count(5); seen = now(); }
long by_context(void) {
    getcontext(&other_context);
    other_context.uc_stack.ss_sp = stack; other_context.uc_stack.ss_size = sizeof stack;
    other_context.uc_link = &main_context; other_context.uc_sigmask = all;
    makecontext(&other_context, entered, 0); swapcontext(&main_context, &other_context);
    return now() << 4 | seen;
}
/* A SIGTRAP that is sent while it is blocked comes when it is not any more. */
long sent(void) {
    sigset_t one, old;
    sigemptyset(&one); sigaddset(&one, SIGTRAP); seen = 0;
    pthread_sigmask(SIG_BLOCK, &one, &old); pthread_kill(pthread_self(), SIGTRAP); long during = seen;
    pthread_sigmask(SIG_SETMASK, &old, 0);
    return during << 4 | seen;
}
static void trapped(int number) { (void)number; seen++; }
void handle_trap(void) { signal(SIGTRAP, trapped); }

static void *ends(void *way) {
    sigset_t none; struct timespec time = {20, 0}; sigemptyset(&none);
    if (way) pselect(0, 0, 0, 0, &time, &none); else ppoll(0, 0, &time, &none);
    return 0;
}
long cancelled(void) {
    long result = 0;
    for (long way = 0; way < 2; way++) {
        pthread_t thread; void *value;
        pthread_create(&thread, 0, ends, (void *)way); usleep(20000); pthread_cancel(thread); pthread_join(thread, &value);
        result = result << 1 | (value == PTHREAD_CANCELED);
    }
    return result;
}
static void traced(int number) {
    (void)number; void *frames[40]; int depth = backtrace(frames, 40);
    char **names = backtrace_symbols(frames, depth);
    for (int n = 0; n < depth; n++) if (strstr(names[n], "walked")) seen = 1;
    free(names);
}
long walked(void) {
    sigset_t one, old; struct timespec time = {5, 0}; struct sigaction a = {.sa_handler = traced};
    sigaction(SIGUSR1, &a, 0); sigemptyset(&one); sigaddset(&one, SIGUSR1);
    seen = 0; pthread_sigmask(SIG_BLOCK, &one, &old); raise(SIGUSR1); pthread_sigmask(SIG_SETMASK, &old, 0);
    long plain = seen;
    seen = 0; pthread_sigmask(SIG_BLOCK, &one, &old); raise(SIGUSR1); ppoll(0, 0, &time, &old); pthread_sigmask(SIG_SETMASK, &old, 0);
    return plain << 1 | seen;
}

static volatile int over;
static long exact;
static void *changes(void *unused) {
    sigset_t old; long turns = 0; (void)unused;
    while (!over) {
        pthread_sigmask(SIG_BLOCK, &all, &old);
        if ((now() & exact) != exact) abort();
        pthread_sigmask(SIG_SETMASK, &old, 0);
        if (now() & 6) abort();
        struct sigaction a = {.sa_handler = handler, .sa_mask = all};
        sigaction(SIGUSR2, &a, 0);
        turns++;
    }
    return (void *)turns;
}
static pthread_t workers[4];
void start(long strict) { over = 0; exact = strict ? 7 : 6; for (int n = 0; n < 4; n++) pthread_create(workers + n, 0, changes, 0); }
long stop(void) {
    long turns = 0; void *value; over = 1;
    for (int n = 0; n < 4; n++) { pthread_join(workers[n], &value); turns += (long)value; }
    return turns;
}
