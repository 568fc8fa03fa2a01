"""A program that leaves a hit at each of its instructions, one after the other, by siglongjmp out of a signal's handler."""

from __future__ import annotations

from built_library import built_library

SOURCE = """
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <ucontext.h>

static sigjmp_buf back;
static volatile long steps, last, left;
long from, to;  /* where the stepped call begins and ends: code that is not the hit's */

__attribute__((noinline)) long leaf(long x) { __asm__ volatile(""); return x * 3 + 1; }

static void on_step(int number, siginfo_t *info, void *context)
{
    greg_t ip = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    if (number == SIGUSR1) siglongjmp(back, 2);
    if (++steps >= last) {
        left = ip;
        siglongjmp(back, 1);
    }
}

void handle_steps(void)
{
    struct sigaction action = {.sa_sigaction = on_step, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGTRAP, &action, 0);
    sigaction(SIGUSR1, &action, 0);
}

__attribute__((noinline)) static long stepped(long x)
{
    long result;
    __asm__ volatile("pushf; orl $0x100, (%%rsp); popf" ::: "cc", "memory");
    result = leaf(x);
    __asm__ volatile("pushf; andl $~0x100, (%%rsp); popf" ::: "cc", "memory");
    return result;
}

/* 1: left after so many instructions of a call of leaf; 0: it ended before that. */
long leave_after(long count)
{
    steps = 0, last = count;
    if (sigsetjmp(back, 1)) return 1;
    stepped(5);
    return 0;
}

__attribute__((noinline)) long call(long times)
{
    long sum = 0;
    while (times--) sum += leaf(times);
    return sum;
}

__attribute__((noinline)) long call_deeper(long times)
{
    volatile char room[3000];
    memset((void *)room, 0, sizeof room);
    return call(times) + room[7];
}
"""


def program():
    """Loaded, and its handler of SIGTRAP installed: fprobe's passes on what is not its own."""
    library = built_library("libleft", SOURCE, "-fno-omit-frame-pointer")
    library.handle_steps()
    return library
