"""Hazard: an exception ends a coroutine's call in another thread than began it. A node stays, and the next call has its place."""

from __future__ import annotations

from functools import cache

import pytest
from built_library import built_library, needs_compilers
from isolation import isolated
from sampled import in_stress

import fprobe

pytestmark = needs_compilers

SOURCE = r"""
#include <pthread.h>
#include <sched.h>
#include <stdexcept>
#include <ucontext.h>

#define FUNCTION extern "C" __attribute__((noinline))
static ucontext_t own, *back;
static volatile int step;
static int last_one_throws;
static long result;

/* Each call of `inner` begins in one thread and goes on in another; all have the same return slot. */
FUNCTION long inner(long n)
{
    swapcontext(&own, back);
    if (n == 1 || (n == 2 && last_one_throws)) throw std::runtime_error("one");
    return n;
}
FUNCTION long both(void)
{
    long a = 0;
    try { a = inner(1); } catch (const std::runtime_error &) { a = 10; }
    try { a += inner(2) * 100; } catch (const std::runtime_error &) { a += 1000; }
    return a;
}
static void body(void) { result = both(); setcontext(back); }
static void resume(void) { ucontext_t here; back = &here; swapcontext(&here, &own); }
static void await(int when) { while (step != when) sched_yield(); }

enum { FIRST, SECOND, THIRD, THIRD_ALONE };
static int last_thread;
/* The first thread makes the call inner(1); the second one ends it by an exception, and makes the call inner(2). */
static void *first(void *)
{
    resume();
    step = 1;
    await(last_thread == THIRD_ALONE ? 2 : 3);
    if (last_thread == FIRST) resume();
    if (last_thread == THIRD_ALONE) return 0;
    step = 4;
    return 0;
}
static void *second(void *)
{
    await(1);
    resume();
    step = 2;
    await(last_thread == THIRD_ALONE ? 3 : 4);
    if (last_thread == SECOND) resume();
    if (last_thread != THIRD_ALONE) step = 5;
    return 0;
}
extern "C" long run(int last, int throws)
{
    static char stack[1 << 17];
    pthread_t threads[2];
    result = -1, step = 0, last_thread = last, last_one_throws = throws;
    getcontext(&own);
    own.uc_stack.ss_sp = stack, own.uc_stack.ss_size = sizeof stack;
    makecontext(&own, body, 0);
    pthread_create(&threads[0], 0, first, 0), pthread_create(&threads[1], 0, second, 0);
    await(2);
    if (last == THIRD_ALONE) pthread_join(threads[0], 0);
    if (last >= THIRD) resume();
    step = 3;
    if (last != THIRD_ALONE) pthread_join(threads[0], 0);
    pthread_join(threads[1], 0);
    return result;
}
"""
FIRST, SECOND, THIRD, THIRD_ALONE = range(4)
"""In which thread the last call returns; THIRD_ALONE: the first one has ended before."""
CASES = [
    ("one", FIRST, False),
    ("two", SECOND, True),
    ("one", THIRD, False),
    ("one", THIRD, True),
    ("one", THIRD_ALONE, False),
]
ALL = [(kind, last, throws) for kind in ("one", "two", "Python") for last in range(4) for throws in (False, True)]


@cache
def library():
    return built_library("libelsewhere", SOURCE, "-xc++")


@pytest.mark.parametrize(("kind", "last", "throws"), [*CASES, *(in_stress(case) for case in ALL if case not in CASES)])
@isolated(timeout=60)
def test_the_call_that_was_made_last_is_the_one_in_progress(kind, last, throws):
    expected, seen = 1010 if throws else 210, []
    assert library().run(last, int(throws)) == expected
    given = {"exit": lambda *given: seen.append(given[3].ax)} if kind == "Python" else {"action": fprobe.Stat()}
    with fprobe.attach("libelsewhere:inner", **given) as probe:
        if kind == "two":
            with fprobe.attach("libelsewhere:inner", action=fprobe.Stat()):
                assert [library().run(last, int(throws)) for _ in range(3)] == [expected] * 3
        else:
            assert [library().run(last, int(throws)) for _ in range(3)] == [expected] * 3
    assert (probe.hits, probe.missed) == (6, 0)
    assert seen == ([2] * 3 if kind == "Python" and not throws else [])
    assert library().run(last, int(throws)) == expected
