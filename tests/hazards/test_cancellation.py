"""HAZARDS 11: a handler calls cancellation points in a thread that did not ask for it. A request waits for the program's own."""

from __future__ import annotations

import ctypes

import pytest
from built_library import built_library, needs_compilers
from isolation import isolated
from sampled import in_stress

import fprobe
import kprobes

pytestmark = needs_compilers

SOURCE = """
#include <pthread.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static volatile int go, reached, state_after, type_after;

__attribute__((noinline)) long work(long x) { __asm__ volatile(""); return x * 3 + 1; }

static void *thread(void *how)
{
    int old;
    if (how == (void *)2) pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
    pthread_mutex_lock(&mutex);
    while (!go) ;
    long result = work(5);
    pthread_mutex_unlock(&mutex);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
    state_after = old;
    reached = result;
    pthread_setcancelstate(old, 0);
    pthread_testcancel();
    return (void *)result;
}

/* how: 1: cancelled before `work`; 2: the same, with cancellation off; returns whether the thread was cancelled at last. */
long run(long how)
{
    pthread_t id;
    void *result;
    go = reached = 0, state_after = -1;
    pthread_create(&id, 0, thread, (void *)how);
    pthread_cancel(id);
    go = 1;
    pthread_join(id, &result);
    return result == PTHREAD_CANCELED;
}

/* With the asynchronous type a request acts at once, but inside a handler. */
static void note(void *unused) { reached = 99; }
static void *at_any_time(void *unused)
{
    int old;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &old);
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &old);
    pthread_cleanup_push(note, 0);
    work(5);
    for (;;) ;
    pthread_cleanup_pop(0);
}
static pthread_t victim;
void begin(void) { pthread_create(&victim, 0, at_any_time, 0); }
void request(void) { pthread_cancel(victim); }
void end(void) { pthread_join(victim, 0); }

int in_c(void) { usleep(1); return 0; }
int read_int(int which) { return which ? state_after : reached; }
"""
DISABLED, ENABLED = 1, 0


def attached(kind, library, calls):
    def handle(*_):
        calls.append(1)
        print(end="", flush=True)

    in_c = ctypes.CFUNCTYPE(ctypes.c_int)(("in_c", library))
    if kind == "Python":
        return fprobe.attach("libcancel:work", entry=handle, exit=handle)
    if kind == "C":
        return fprobe.attach("libcancel:work", entry=in_c, exit=in_c)
    if kind == "kretprobe":
        return kprobes.attach_return("libcancel:work", handler=handle)
    kprobes.set_kprobes_optimization(int(kind == "jump"))
    return kprobes.attach("libcancel:work", pre=in_c if kind == "C at a breakpoint" else handle)


@pytest.mark.parametrize(
    "kind",
    [
        "Python",
        in_stress("C"),
        in_stress("jump"),
        in_stress("breakpoint"),
        in_stress("C at a breakpoint"),
        in_stress("kretprobe"),
    ],
)
@isolated(timeout=60)
def test_a_request_waits_until_the_program_reaches_a_cancellation_point(kind):
    library, calls = built_library("libcancel", SOURCE), []
    with attached(kind, library, calls) as probe:
        kprobes.wait_for_kprobe_optimizer()
        assert library.run(1) == 1  # cancelled, but after `work`
        assert library.read_int(0) == 16
        assert library.read_int(1) == ENABLED
        assert library.run(2) == 0
        assert library.read_int(1) == DISABLED
        assert kind == "C at a breakpoint" or probe.hits == 2
    assert library.run(1) == 1
    if " " not in kind and kind != "C":
        assert len(calls) in (2, 4)


@isolated(timeout=60)
def test_with_the_asynchronous_type_a_handler_ends_before_its_thread():
    library, steps = built_library("libcancel", SOURCE), []

    def handle(*_):
        library.request()
        steps.append(sum(range(100_000)))

    with fprobe.attach("libcancel:work", entry=handle):
        library.begin()
        library.end()
    assert library.read_int(0) == 99  # its cleanup handler has run
    assert steps == [4999950000]
