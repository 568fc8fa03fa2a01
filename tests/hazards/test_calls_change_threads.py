"""Hazard: coroutines that any thread may resume. A hooked call begins in one thread and returns in another."""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

import pytest
from built_library import built_library, needs_compilers
from isolation import isolated
from sampled import in_stress

import fprobe
import kprobes
import sandbox
from sandbox.native import i32, ptr, u64

pytestmark = needs_compilers

SOURCE = r"""
#include <pthread.h>
#include <sched.h>
#include <stdexcept>
#include <stdlib.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unwind.h>
#include <unistd.h>

#define FUNCTION extern "C" __attribute__((noinline))
#define STACK (1 << 17)
struct Routine { ucontext_t own, *back; volatile int busy, done; int rounds, throws; long sum; char *stack; };
static Routine *all;
static int number, patience;

/* `pauses` and `work` begin in the thread that resumes the routine, and return in the one that does so next. */
FUNCTION long pauses(Routine *r, long n) { swapcontext(&r->own, r->back); return n + 1; }
FUNCTION long work(Routine *r, long n) { return n ? work(r, n - 1) + pauses(r, n) : 0; }
FUNCTION long thrown(Routine *r, long n) { long got = pauses(r, n); if (n & 1) throw std::runtime_error("odd"); return got; }
/* Calls from two places have one return slot. */
FUNCTION long catches(Routine *r, long n)
{
    try { if (n & 2) return thrown(r, n) ^ 5; return thrown(r, n) + 1000; } catch (const std::runtime_error &) { return -n; }
}
static void body(int index)
{
    Routine *r = &all[index];
    for (long n = 0; n < r->rounds; n++)
        r->sum += work(r, n % 4) + (r->throws ? catches(r, n) : 0);
    r->done = 1;
    setcontext(r->back);
}
static void resume(Routine *r)
{
    ucontext_t back;
    r->back = &back;
    swapcontext(&back, &r->own);
}
static void *runs(void *seed)
{
    for (unsigned state = (unsigned)(long)seed, idle = 0; idle < patience; idle++) {
        Routine *r = &all[rand_r(&state) % number];
        if (r->done || __sync_lock_test_and_set(&r->busy, 1)) { sched_yield(); continue; }
        if (!r->done) resume(r), idle = 0;
        __sync_lock_release(&r->busy);
    }
    return 0;
}
extern "C" long run(int threads, int routines, int rounds, int throws, int tries)
{
    number = routines, patience = tries;
    all = (Routine *)calloc(routines, sizeof *all);
    for (int n = 0; n < routines; n++) {
        all[n].rounds = rounds, all[n].throws = throws, all[n].stack = (char *)malloc(STACK);
        getcontext(&all[n].own);
        all[n].own.uc_stack.ss_sp = all[n].stack, all[n].own.uc_stack.ss_size = STACK;
        makecontext(&all[n].own, (void (*)())body, 1, n);
    }
    pthread_t made[16];
    for (long n = 0; n < threads; n++) pthread_create(&made[n], 0, runs, (void *)(n + 1));
    for (long n = 0; n < threads; n++) pthread_join(made[n], 0);
    for (int n = 0; n < routines; n++) while (!all[n].done) resume(&all[n]);
    long sum = 0;
    for (int n = 0; n < routines; n++) sum += all[n].sum, free(all[n].stack);
    free(all);
    return sum;
}

/* One call that begins in another thread, and returns in the child of a fork. */
static Routine forked;
static volatile int is_paused, is_over;
static void in_child(int) { forked.sum = pauses(&forked, 41); setcontext(forked.back); }
static void *pauses_here(void *) { resume(&forked); is_paused = 1; while (!is_over) sched_yield(); return 0; }
extern "C" long forks(void)
{
    static char stack[STACK];
    pthread_t thread;
    int status = 0;
    getcontext(&forked.own);
    forked.own.uc_stack.ss_sp = stack, forked.own.uc_stack.ss_size = STACK, is_paused = is_over = 0;
    makecontext(&forked.own, (void (*)())in_child, 1, 0);
    pthread_create(&thread, 0, pauses_here, 0);
    while (!is_paused) sched_yield();
    pid_t child = fork();
    if (child == 0) { resume(&forked); _exit(forked.sum); }
    waitpid(child, &status, 0);
    is_over = 1, pthread_join(thread, 0);
    return status;
}

/* One call that begins in a thread which ends, or not, and returns in one that has met no probe. */
static Routine one;
static void once(int) { one.sum = pauses(&one, 41); setcontext(one.back); }
static volatile int paused, resumed;
static void *begins(void *ends) { resume(&one); paused = 1; while (!ends && !resumed) sched_yield(); return 0; }
FUNCTION long deep(long n) { if (n) return deep(n - 1) + 1; resume(&one); return 0; }
static void *goes_on(void *depth) { while (!paused) sched_yield(); one.sum += deep((long)depth); resumed = 1; return 0; }
extern "C" long changes_once(long ends, long depth)
{
    static char stack[STACK];
    pthread_t first, second;
    getcontext(&one.own);
    one.own.uc_stack.ss_sp = stack, one.own.uc_stack.ss_size = STACK, paused = resumed = 0;
    makecontext(&one.own, (void (*)())once, 1, 0);
    pthread_create(&first, 0, begins, (void *)ends);
    if (ends) pthread_join(first, 0);
    pthread_create(&second, 0, goes_on, (void *)depth), pthread_join(second, 0);
    if (!ends) pthread_join(first, 0);
    return one.sum;
}

/* Two calls that begin in a thread which ends while another one that runs them walks its stack, at the frame `ends_at`. */
static Routine seen;
static pthread_t owner;
static int ends_at, visited, is_whole;
FUNCTION void outermost(int);
static _Unwind_Reason_Code visit(struct _Unwind_Context *context, void *)
{
    if (visited++ == ends_at) is_over = 1, pthread_join(owner, 0), owner = 0;
    if (_Unwind_FindEnclosingFunction((void *)_Unwind_GetIP(context)) == (void *)outermost) is_whole = 1;
    return _URC_NO_REASON;
}
FUNCTION long looks(Routine *r) { pauses(r, 1); _Unwind_Backtrace(visit, 0); throw std::runtime_error("seen"); }
FUNCTION long around(Routine *r) { return looks(r) + 1; }
FUNCTION void outermost(int)
{
    try { around(&seen); } catch (const std::runtime_error &) { seen.sum = 1; }
    setcontext(seen.back);
}
static void *owns(void *) { resume(&seen); is_paused = 1; while (!is_over) sched_yield(); return 0; }
static void *walks(void *) { while (!is_paused) sched_yield(); resume(&seen); return 0; }
extern "C" long walk(int at)
{
    static char stack[STACK];
    pthread_t second;
    getcontext(&seen.own);
    seen.own.uc_stack.ss_sp = stack, seen.own.uc_stack.ss_size = STACK, seen.sum = visited = is_whole = is_paused = is_over = 0;
    makecontext(&seen.own, (void (*)())outermost, 1, 0);
    ends_at = at;
    pthread_create(&owner, 0, owns, 0);
    pthread_create(&second, 0, walks, 0), pthread_join(second, 0);
    if (owner) is_over = 1, pthread_join(owner, 0);
    return is_whole && seen.sum;
}
"""
NAMES = ("pauses", "work", "thrown", "catches")
entered = fprobe.Array(u64, 1, shared=True)
left = fprobe.Array(u64, 2, shared=True)
"""Calls that returned, and those of them that did not have what their entry had noted."""


@fprobe.native
def on_entry(fp, ip, ret_ip, regs, data: ptr[u64]) -> i32:
    entered[0] += 1
    data[0] = regs.si
    data[11] = ret_ip
    return 0


@fprobe.native
def on_exit(fp, ip, ret_ip, regs, data: ptr[u64]):
    left[0] += 1
    if data[11] != ret_ip:
        left[1] += 1


@kprobes.native
def returned(ri, regs):
    left[0] += 1


@cache
def library():
    return built_library("libroutines", SOURCE, "-xc++")


@cache
def calls(throws):
    """How often `run` with these arguments calls the probed functions, and how many of the calls return."""
    made = [("work", sum(n % 4 + 1 for n in range(ROUNDS))), ("pauses", sum(n % 4 for n in range(ROUNDS)))]
    if throws:
        made += [("pauses", ROUNDS), ("thrown", ROUNDS), ("catches", ROUNDS), ("", -(ROUNDS // 2))]
    return sum(number for name, number in made if name) * ROUTINES, sum(number for _, number in made) * ROUTINES


THREADS, ROUTINES, ROUNDS = 3, 7, 40


def run(throws, module=None, tries=1000):
    """The sum that the routines make, which does not depend on who resumes them. A thread ends after so many `tries` in vain."""
    call = module["run"] if module else library().run
    return call(THREADS, ROUTINES, ROUNDS, int(throws), tries)


@pytest.mark.parametrize("throws", [True, in_stress(False)])
@isolated(timeout=100)
def test_exit_handlers_run_in_the_thread_in_which_a_call_returns(throws):
    expected = run(throws)
    names = [f"libroutines:{name}" for name in NAMES]
    with fprobe.attach(names, entry=on_entry, exit=on_exit, entry_data_size=96) as probe:
        assert run(throws) == expected
    assert (probe.hits, probe.missed) == (calls(throws)[0], 0)
    assert (entered[0], left[0], left[1]) == (*calls(throws), 0)


@pytest.mark.parametrize("kind", [in_stress("Python"), in_stress("two"), "kretprobe"])
@isolated(timeout=100)
def test_probes_of_other_kinds_on_calls_that_change_threads(kind):
    expected, seen = run(True), []
    names = [f"libroutines:{name}" for name in NAMES]
    with ExitStack() as probes:
        if kind == "kretprobe":
            for name in names:
                probes.enter_context(kprobes.attach_return(name, handler=returned, maxactive=1000))
        elif kind == "two":
            probes.enter_context(fprobe.attach(names, entry=on_entry, exit=on_exit, entry_data_size=96))
            probes.enter_context(fprobe.attach(names, action=fprobe.Stat(self_time=True)))
        else:
            probes.enter_context(fprobe.attach(names, exit=lambda *_: seen.append(1)))
        assert run(True) == expected
    assert left[0] + len(seen) == calls(True)[1]


@pytest.mark.stress
@isolated(timeout=100)
def test_calls_of_modules_change_threads():
    with TemporaryDirectory() as directory:
        path = Path(directory) / "routines.cc"
        path.write_text(SOURCE)
        module = sandbox.load(path)
        expected = run(True, module)
        with fprobe.attach(list(NAMES), entry=on_entry, exit=on_exit, entry_data_size=96):
            assert run(True, module) == expected
            assert (entered[0], left[0], left[1]) == (*calls(True), 0)
            assert [module["changes_once"](ends, 0) for ends in (0, 1, 0, 1)] == [42] * 4


@pytest.mark.parametrize("native", [True, in_stress(False)])
@isolated(timeout=100)
def test_a_call_may_return_in_a_thread_that_has_met_no_probe(native):
    library()
    both = {"entry": on_entry, "exit": on_exit} if native else {"exit": lambda *_: None}
    with fprobe.attach("libroutines:pauses", entry_data_size=96, **both) as probe:
        assert [library().changes_once(ends, 0) for ends in (0, 1, 0, 1)] == [42] * 4
    assert probe.hits == 4
    if native:
        assert left[0] == 2  # the thread that made the other two has ended


@isolated(timeout=100)
def test_a_call_returns_in_a_thread_whose_shadow_stack_is_full():
    library()
    with fprobe.attach(["libroutines:pauses", "libroutines:deep"], action=fprobe.Stat(), nr_maxactive=50000) as probe:
        assert [library().changes_once(ends, 40000) for ends in (0, 1)] == [40042] * 2
    assert probe.counts.missed_depth > 0, probe.counts


@isolated(timeout=100)
def test_a_call_of_another_thread_returns_in_the_child_of_a_fork():
    library()
    with fprobe.attach("libroutines:pauses", action=fprobe.Stat()) as probe:
        assert [library().forks() for _ in range(2)] == [42 << 8] * 2
    assert probe.hits == 2


@isolated(timeout=100)
def test_a_thread_may_end_while_another_unwinds_its_calls():
    """libgcc reads a return address twice, and the thread that ends puts the real one into the slot in between."""
    library()
    names = [f"libroutines:{name}" for name in ("looks", "around", "outermost")]
    for action in (fprobe.Stat(), fprobe.Stat(self_time=True)):
        with fprobe.attach(names, action=action) as probe:
            assert [library().walk(frame) for frame in range(12)] == [1] * 12
        assert probe.hits == 36


@pytest.mark.stress
@isolated(timeout=100)
def test_threads_end_while_others_return_from_their_calls_and_throw():
    expected = run(True)
    names = [f"libroutines:{name}" for name in NAMES]
    with fprobe.attach(names, entry=on_entry, exit=on_exit, entry_data_size=96) as probe:
        ends = time.monotonic() + 5
        rounds = 0
        while time.monotonic() < ends:
            assert run(True, tries=3) == expected
            rounds += 1
    assert (probe.hits, probe.missed) == (calls(True)[0] * rounds, 0)
    assert left[1] == 0


@pytest.mark.stress
@isolated(timeout=100)
def test_probes_come_and_go_while_calls_change_threads():
    expected = run(True)
    ends = time.monotonic() + 5
    results = []
    threads = [Thread(target=lambda: results.append(run(True) == expected))]
    while time.monotonic() < ends:
        if not threads[0].is_alive():
            threads[0] = Thread(target=lambda: results.append(run(True) == expected))
            threads[0].start()
        with fprobe.attach("libroutines:*", action=fprobe.Stat()):
            time.sleep(0.002)
    threads[0].join()
    assert results and all(results)
