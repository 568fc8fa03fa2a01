"""HAZARDS 3: per-thread state."""

# ruff: noqa: ARG005, E501  (the signature of a handler is given; IR is as wide as it is)

from __future__ import annotations

import shutil

import pytest
from isolation import isolated
from programs import assert_untouched, basic, load_c

needs_cc = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")

THREADS = r"""
#include <pthread.h>
#include <stdlib.h>
__attribute__((noipa)) long leaf(long x) { return x + 1; }
__attribute__((noipa)) long leaves(long x) { if (x < 0) pthread_exit((void *)leaf(x)); return x; }
__attribute__((noipa)) long deep(long n, long x) { volatile long r = n ? deep(n - 1, x) + 1 : leaves(x); return r; }
static void *ends_inside(void *x) { return (void *)deep(20, (long)x); }
static void *ends(void *x) { return (void *)leaf((long)x); }
/* One after the other: a new thread gets the memory, and so the thread pointer, of the one before. */
long one_by_one(long n, long inside) {
    long sum = 0;
    for (long i = 0; i < n; i++) {
        pthread_t t; void *r;
        if (pthread_create(&t, 0, inside ? ends_inside : ends, (void *)(inside ? -1 - i : i))) return -1;
        pthread_join(t, &r);
        sum += (long)r;
    }
    return sum;
}
static pthread_barrier_t together;
static void *waits(void *x) { pthread_barrier_wait(&together); long r = leaf((long)x); pthread_barrier_wait(&together); return (void *)r; }
long all_at_once(long n) {
    pthread_t *t = malloc(n * sizeof *t); pthread_attr_t small; long sum = 0;
    pthread_attr_init(&small); pthread_attr_setstacksize(&small, 65536);
    pthread_barrier_init(&together, 0, n);
    for (long i = 0; i < n; i++) if (pthread_create(&t[i], &small, waits, (void *)i)) return -1;
    for (long i = 0; i < n; i++) { void *r; pthread_join(t[i], &r); sum += (long)r; }
    pthread_barrier_destroy(&together);
    free(t);
    return sum;
}
"""


@isolated
def test_a_record_that_is_just_being_claimed_has_no_calls_yet():
    """Who looks through the shadow stacks meanwhile may see it: another thread has claimed the one behind it already."""
    import fprobe
    from ftrace.core.runtime import runtime

    module = basic()
    with fprobe.attach(["leaf"], entry=lambda *hit: None):
        module["leaf"](1)
    image = runtime().image
    image.variable("tasks_claimed_high").value += 1
    fresh = runtime().tasks()[-1]
    for top, bottom in ((0, 0), (0, runtime().slab), (runtime().slab, 0)):
        fresh.top, fresh.bottom = top, bottom
        assert image.call("is_pinned", 1) == 0
        assert runtime().shadow_ips() == []


@needs_cc
@isolated
def test_thread_pointer_reuse_new_threads_start_with_an_empty_record():
    import fprobe
    from ftrace.core.runtime import runtime

    module = load_c(THREADS)
    expected = module["one_by_one"](500, 0)
    with fprobe.attach(["leaf", "ends"], action=fprobe.Stat(), nr_maxactive=2) as probe:
        assert module["one_by_one"](500, 0) == expected
    assert probe.counts.hits == 1000 and probe.counts.missed == 0
    assert len(runtime().tasks()) < 20  # records are used again


@needs_cc
@pytest.mark.parametrize("kind", ["native", "python"])
@isolated
def test_thread_exit_inside_hooked_functions_gives_their_nodes_back(kind):
    """RH-24: without handlers and without counting."""
    import fprobe

    module = load_c(THREADS)
    back = []
    handlers = {"action": fprobe.Stat()} if kind == "native" else {"exit": lambda *hit: back.append(1)}
    expected = module["one_by_one"](200, 1)
    with fprobe.attach(["deep", "leaves", "leaf"], nr_maxactive=23, **handlers) as probe:
        assert module["one_by_one"](200, 1) == expected
    assert probe.counts.hits == 200 * 23 and probe.counts.missed == 0
    assert back == [1] * (200 if kind == "python" else 0)  # leaf returns; nothing else does
    assert_untouched()


@needs_cc
@isolated
def test_many_threads_every_hit_is_counted():
    import fprobe

    module = load_c(THREADS)
    with fprobe.attach("leaf", action=fprobe.Stat(), nr_maxactive=400) as probe:
        assert module["all_at_once"](300) == 300 * 301 // 2
    assert probe.counts.hits == 300 and probe.counts.missed == 0
    assert sum(stat.hits for stat in probe.action.functions().values()) == 300


@needs_cc
@isolated(timeout=60)
def test_exhausted_more_threads_than_records_are_misses_and_all_goes_on():
    """Cause `task`; the threads that have a record are not disturbed, and the records come back."""
    import fprobe
    from sandbox.threads import tasks

    module = load_c(THREADS)
    more = tasks.CAPACITY + 200
    with fprobe.attach("leaf", action=fprobe.Stat(), nr_maxactive=5000) as probe:
        result = module["all_at_once"](more)
        if result == -1:
            pytest.skip("this machine allows fewer threads")
        assert result == more * (more + 1) // 2
        counts = probe.counts
        assert counts.hits + counts.missed_task == more and 150 < counts.missed_task <= 300, counts
        assert module["all_at_once"](100) == 5050
        assert probe.counts.missed_task == counts.missed_task


@isolated
def test_counters_of_threads_that_have_ended_stay_in_the_sums():
    import threading

    import fprobe

    module = basic()
    with fprobe.attach("leaf", entry=lambda *hit: 0) as probe:
        for i in range(1, 11):
            thread = threading.Thread(target=module["loop"], args=(10,))
            thread.start()
            thread.join()
            assert probe.hits == 10 * i
    assert probe.hits == 100


@isolated
def test_a_second_probe_on_the_same_line_starts_from_zero():
    import threading

    import fprobe

    module = basic()
    for _ in range(5):
        with fprobe.attach("factorial", action=fprobe.Stat(), nr_maxactive=2) as probe:
            threads = [threading.Thread(target=module["factorial"], args=(5,)) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert probe.counts.hits == 15 and 9 <= probe.counts.missed_nodes <= 15 - 2
