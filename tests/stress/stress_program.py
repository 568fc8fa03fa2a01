"""The program that is probed: four threads that call and are signalled, and that can be brought to rest."""

# ruff: noqa: E501  (C is as wide as it is)

from __future__ import annotations

from typing import Any

PAIRS, PLAIN = 16, 5
"""Functions f0..f15, and g0..g15 that call them; functions p0..p4 without stubs."""

SOURCE = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#define HOOKED __attribute__((noipa))
#define STUBLESS __attribute__((noipa, patchable_function_entry(0)))
enum { THREADS = 4, PAIRS = 16, PLAIN = 5, KINDS = PAIRS + 5 + PLAIN };
static atomic_int stop, rest, resting;
static atomic_long wrong, signals, ended;
struct counts { _Atomic long of_kind[KINDS]; } __attribute__((aligned(64)));
static struct counts counts[THREADS + 1];
static __thread struct counts *mine;
static __thread int at_rest;
static __thread jmp_buf back;

#define PAIR(n) HOOKED long f##n(long x) { return x + n; } HOOKED long g##n(long x) { long r = f##n(x); return r * 2; }
PAIR(0) PAIR(1) PAIR(2) PAIR(3) PAIR(4) PAIR(5) PAIR(6) PAIR(7) PAIR(8) PAIR(9) PAIR(10) PAIR(11) PAIR(12) PAIR(13) PAIR(14) PAIR(15)
static long (*const table[])(long) = { g0, g1, g2, g3, g4, g5, g6, g7, g8, g9, g10, g11, g12, g13, g14, g15 };
HOOKED double real(double x, long n) { volatile double r = n ? real(x, n - 1) * 1.5 : x; return r; }
struct big { long v[5]; };
HOOKED struct big by_value(struct big b, long x) { b.v[x & 3] += x; return b; }
HOOKED long deep(long n) { volatile long r = n ? deep(n - 1) + 1 : 0; return r; }
HOOKED void jumps(long x) { if (x) longjmp(back, 1); }
HOOKED long around(long x) { volatile long y = x; if (!setjmp(back)) jumps(x | 1); return y + 1; }
HOOKED long many(long a, long b, long c, long d, long e, long f, long g, long h) { return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h; }
static volatile long seven = 7;
STUBLESS long quad(long x) { return x * 4; }
static long (*volatile through)(long) = quad;
STUBLESS long p0(long x) { return x * 3; }
STUBLESS long p1(long x) { return x * seven; }
STUBLESS long p2(long x) { return through(x) + seven; }
STUBLESS long p3(long x) { return (x | 1) / seven; }
STUBLESS long p4(long x) { return (long)((double)x * 0.5); }

static int right(int kind, long x) {
    if (kind < PAIRS) return table[kind](x) == (x + kind) * 2;
    if (kind == PAIRS) return real(1.0, 4) == 5.0625;
    if (kind == PAIRS + 1) { struct big b = { { x, x, x, x, x } }; b = by_value(b, x); return b.v[0] + b.v[1] + b.v[2] + b.v[3] + b.v[4] == 6 * x; }
    if (kind == PAIRS + 2) return deep(x & 7) == (x & 7);
    if (kind == PAIRS + 3) return around(x) == x + 1;
    if (kind == PAIRS + 4) return many(x, x, x, x, x, x, x, x) == 36 * x;
    if (kind == PAIRS + 5) return p0(x) == 3 * x;
    if (kind == PAIRS + 6) return p1(x) == 7 * x;
    if (kind == PAIRS + 7) return p2(x) == 4 * x + 7;
    if (kind == PAIRS + 8) return p3(x) == (x | 1) / 7;
    return p4(x) == x / 2;
}
static void call(unsigned long *state) {
    *state ^= *state << 13; *state ^= *state >> 7; *state ^= *state << 17;
    int kind = *state % KINDS;
    if (!right(kind, (long)(*state >> 40))) atomic_fetch_add(&wrong, 1);
    long times = kind == PAIRS + 2 ? ((*state >> 40) & 7) + 1 : 1;
    atomic_fetch_add_explicit(&mine->of_kind[kind], times, memory_order_relaxed);
}
static void nap(long ns) { struct timespec t = { 0, ns }; nanosleep(&t, 0); }
static void *run(void *number) {
    setpriority(PRIO_PROCESS, gettid(), 15);  /* whoever registers is to have a CPU when it wants one */
    unsigned long state = 88172645463325252ul + (long)number * 7919;
    mine = &counts[(long)number];
    while (!atomic_load(&stop)) {
        if (atomic_load(&rest)) {
            at_rest = 1; atomic_fetch_add(&resting, 1);
            while (atomic_load(&rest)) nap(200000);
            atomic_fetch_sub(&resting, 1); at_rest = 0;
        }
        for (int i = 0; i < 200; i++) call(&state);
        nap(20000);
    }
    return 0;
}
static void *short_life(void *seed) {
    unsigned long state = (unsigned long)seed | 1;
    mine = &counts[THREADS];
    for (int i = 0; i < 20; i++) call(&state);
    atomic_fetch_add(&ended, 1);
    return 0;
}
static __thread unsigned long in_signal;
static void on_signal(int s) {
    if (!mine || at_rest) return;
    jmp_buf kept;  /* a handler that jumps must not spoil the jump that it interrupts */
    memcpy(kept, back, sizeof kept);
    if (!in_signal) in_signal = 0x9E3779B97F4A7C15ul ^ (unsigned long)&in_signal;
    call(&in_signal);
    memcpy(back, kept, sizeof kept);
    atomic_fetch_add_explicit(&signals, 1, memory_order_relaxed);
}
static pthread_t threads[THREADS], shaker;
static void *shake(void *unused) {
    for (int i = 0; !atomic_load(&stop); i++) { pthread_kill(threads[i % THREADS], SIGUSR1); nap(100000); }
    return 0;
}
void start(void) {
    struct sigaction sa = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
    sigaction(SIGUSR1, &sa, 0);
    for (long i = 0; i < THREADS; i++) pthread_create(&threads[i], 0, run, (void *)i);
    pthread_create(&shaker, 0, shake, 0);
}
void come_to_rest(void) { atomic_store(&rest, 1); while (atomic_load(&resting) != THREADS) nap(50000); }
void go_on(void) { atomic_store(&rest, 0); while (atomic_load(&resting)) nap(50000); }
void one_more(long seed) { pthread_t t; pthread_create(&t, 0, short_life, (void *)seed); pthread_join(t, 0); }
long finish(void) {
    atomic_store(&stop, 1); atomic_store(&rest, 0);
    pthread_join(shaker, 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
    return wrong;
}
long wrong_so_far(void) { return wrong; }
long signalled(void) { return signals; }
void counted(long *of_kind) {
    for (int k = 0; k < KINDS; k++) of_kind[k] = 0;
    for (int t = 0; t <= THREADS; t++) for (int k = 0; k < KINDS; k++) of_kind[k] += counts[t].of_kind[k];
}
HOOKED long waits(long milliseconds) { for (long i = 0; i < milliseconds; i++) nap(1000000); return milliseconds; }
"""

KINDS = PAIRS + 5 + PLAIN
CALLS: dict[str, int] = {f"{letter}{n}": n for letter in "fg" for n in range(PAIRS)}
CALLS |= {
    "real": PAIRS,
    "by_value": PAIRS + 1,
    "deep": PAIRS + 2,
    "jumps": PAIRS + 3,
    "around": PAIRS + 3,
    "many": PAIRS + 4,
}
"""A function -> the kind of call that it is in."""
TIMES = {"real": 5}
"""How often it is called in each, if that is not once."""
NAMES = tuple(CALLS)
"""What has a stub."""
CALLS |= {f"p{n}": PAIRS + 5 + n for n in range(PLAIN)}
CALLS["quad"] = CALLS["p2"]


def calls_of(module: Any) -> dict[str, int]:
    """How often each function has been called; exact while the threads are at rest."""
    import ctypes

    kinds = (ctypes.c_long * KINDS)()
    module["counted"](kinds)
    return {name: kinds[kind] * TIMES.get(name, 1) for name, kind in CALLS.items()}
