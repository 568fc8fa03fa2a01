"""Probes come and go while threads are inside probed functions and another one is signalled."""

# ruff: noqa: ARG005, E501  (the signature of a handler is given; C is as wide as it is)

from __future__ import annotations

import ctypes
import shutil
import time

import pytest
from isolation import isolated
from programs import assert_untouched, load_c, text_of

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")

PROGRAM = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>
static atomic_int stop;
static atomic_long wrong, calls, handled;
__attribute__((noipa)) long leaf(long x) { return x + 1; }
__attribute__((noipa)) long many(long a, long b, long c, long d, long e, long f, long g, long h) { return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * leaf(h); }
__attribute__((noipa)) double real(double x, long n) { volatile double r = n ? real(x, n - 1) * 1.5 : x; return r; }
struct big { long v[5]; };
__attribute__((noipa)) struct big by_value(struct big b, long x) { struct big r = b; r.v[x % 5] += leaf(x); return r; }
__attribute__((noipa)) long on_path(long x) {
    long r = many(x, x, x, x, x, x, x, x);
    struct big b = { { x, x, x, x, x } };
    b = by_value(b, x < 0 ? 0 : x);
    if (real(1.0, 4) != 5.0625) return -1;
    return r + b.v[0] + b.v[1] + b.v[2] + b.v[3] + b.v[4];
}
__attribute__((noipa)) long calm(long x) { volatile long r = x ? calm(x - 1) + 1 : 0; return r; } /* never in a signal */
static long expected(long x) { return 36 * x + 8 + 5 * x + x + 1; }
static void *run(void *seed) {
    for (long i = (long)seed; !atomic_load(&stop); i++) {
        if (on_path(i) != expected(i)) atomic_fetch_add(&wrong, 1);
        if (calm(3) != 3) atomic_fetch_add(&wrong, 1);
        atomic_fetch_add(&calls, 1);
    }
    return 0;
}
static void on_signal(int s) { long x = atomic_fetch_add(&handled, 1); if (on_path(x) != expected(x)) atomic_fetch_add(&wrong, 1); }
static pthread_t threads[4];
static void *shake(void *target) {
    struct timespec nap = { 0, 30000 };
    while (!atomic_load(&stop)) { pthread_kill(*(pthread_t *)target, SIGUSR1); nanosleep(&nap, 0); }
    return 0;
}
/* Two threads run; a third runs and is signalled by a fourth. */
void start(void) {
    struct sigaction sa = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
    sigaction(SIGUSR1, &sa, 0);
    for (long i = 0; i < 3; i++) pthread_create(&threads[i], 0, run, (void *)(i * 1000));
    pthread_create(&threads[3], 0, shake, &threads[2]);
}
long finish(void) {
    atomic_store(&stop, 1);
    pthread_join(threads[3], 0);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], 0);
    return wrong;
}
long called(void) { return calls; }
long signalled(void) { return handled; }
"""

NAMES = ["leaf", "many", "real", "by_value", "on_path", "calm"]


def churn(cycles: int, seconds: float) -> None:
    """Attach and detach, in every manner, until both limits are reached."""
    import fprobe
    from ftrace.core.runtime import runtime

    module = load_c(PROGRAM)
    before = text_of(module)
    sites = list(zip(module.sites, module.site_functions, strict=True))
    bytes_before = [ctypes.string_at(site, 5) for site, _ in sites]
    manners = (
        lambda names: fprobe.attach(names, action=fprobe.Count()),
        lambda names: fprobe.attach(names, action=fprobe.Stat(), nr_maxactive=3),
        lambda _: fprobe.attach("calm", entry=lambda *hit: 0, max_hits=50),
        lambda _: fprobe.attach("calm", exit=lambda *hit: None, max_hits=20, nr_maxactive=2),
        lambda names: fprobe.attach(names, action=fprobe.Stat(), nr_maxactive=1000),
    )
    module["start"]()
    end = time.monotonic() + seconds
    done = 0
    while done < cycles or time.monotonic() < end:
        runtime().force_breakpoints = done % 4 == 3
        names = NAMES[done % 5 :] or NAMES
        with manners[done % 5](list(names)):
            if done % 7 == 0:
                with manners[(done + 1) % 5](list(NAMES)):
                    pass
        done += 1
    assert module["finish"]() == 0
    assert module["called"]() > 1000 and module["signalled"]() > 10
    assert text_of(module) == before
    assert [ctypes.string_at(site, 5) for site, _ in sites] == bytes_before
    assert_untouched()


@isolated(timeout=40)
def test_attach_and_detach_under_calls_and_signals():
    churn(cycles=25, seconds=0.15)


@pytest.mark.stress
@pytest.mark.timeout(900)
@isolated(timeout=800)
def test_ten_thousand_cycles_under_calls_and_signals():
    churn(cycles=10_000, seconds=30)
