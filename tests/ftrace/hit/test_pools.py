"""Return-node pools: FP-25..28, HAZARDS 4. Exactly nr_maxactive at a time."""

# ruff: noqa: ARG005, E501  (the signature of a handler is given; C is as wide as it is)

from __future__ import annotations

import ctypes
import threading

import pytest
from isolation import isolated
from programs import load_c
from sampled import in_stress

import fprobe

KINDS = [{"action": "stat"}, {"exit": lambda *hit: None}]


def attached(name, kind, size):
    options = {"action": fprobe.Stat()} if "action" in kind else kind
    return fprobe.attach(name, nr_maxactive=size, **options)


@pytest.mark.parametrize("kind", KINDS, ids=["native", "python"])
@pytest.mark.parametrize("size", [1, 2, 7, 64])
def test_one_thread_alone_takes_exactly_all(program, size, kind):
    with attached("factorial", kind, size) as probe:
        for round_ in range(1, 5):
            program["factorial"](100)
            assert probe.counts.missed_nodes == round_ * (100 - size)


@pytest.mark.parametrize("kind", KINDS, ids=["native", "python"])
def test_what_one_thread_has_given_back_another_can_take(program, kind):
    """Credits stay with a thread until somebody runs short; then all of them are there for everybody."""
    with attached("factorial", kind, 10) as probe:
        for _ in range(6):
            thread = threading.Thread(target=program["factorial"], args=(10,))
            thread.start()
            thread.join()
            program["factorial"](10)
        assert probe.counts.missed == 0
        program["factorial"](11)
        assert probe.counts.missed_nodes == 1


@pytest.mark.parametrize("size", [1, 3, 4, 5])
def test_never_more_than_nr_maxactive_at_once(program, size):
    """Eight calls are in their bodies at once; exactly `size` of them have an exit to come."""
    together = threading.Barrier(9, timeout=30)
    body = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(
        lambda x: (together.wait() and x) or (together.wait() and x) or x
    )
    address = ctypes.cast(body, ctypes.c_void_p).value
    back = []
    with fprobe.attach("apply", exit=lambda *hit: back.append(1), nr_maxactive=size) as probe:
        for round_ in range(1, 4):
            threads = [threading.Thread(target=program["apply"], args=(address, 0)) for _ in range(8)]
            for thread in threads:
                thread.start()
            together.wait()
            assert probe.counts.missed_nodes == round_ * (8 - size)
            together.wait()
            for thread in threads:
                thread.join()
            assert len(back) == round_ * size


CONTENDED = r"""
#include <pthread.h>
#include <stdatomic.h>
static atomic_long inside, most;
long handler_in(void *fp, unsigned long ip, unsigned long ret, void *regs, long *data) {
    if (!data) return 0;
    long now = atomic_fetch_add(&inside, 1) + 1, seen = atomic_load(&most);
    while (now > seen && !atomic_compare_exchange_weak(&most, &seen, now)) ;
    return 0;
}
long handler_out(void *fp, unsigned long ip, unsigned long ret, void *regs, long *data) { atomic_fetch_sub(&inside, 1); return 0; }
__attribute__((noipa)) long nest(long n) { volatile long r = n ? nest(n - 1) + 1 : 0; return r; }
static void *run(void *n) { long bad = 0; for (long i = 0; i < (long)n; i++) if (nest(i % 5) != i % 5) bad++; return (void *)bad; }
long contend(long threads, long n) {
    pthread_t t[16]; long bad = 0;
    for (int i = 0; i < threads; i++) pthread_create(&t[i], 0, run, (void *)n);
    for (int i = 0; i < threads; i++) { void *r; pthread_join(t[i], &r); bad += (long)r; }
    return bad;
}
long peak(void) { return atomic_exchange(&most, 0); }
long at_rest(void) { return inside; }
"""


@pytest.mark.parametrize("size", [1, in_stress(4), in_stress(10)])
@isolated
def test_four_threads_at_the_limit(size):
    """Never above it, all back at rest, and afterwards one thread alone gets exactly all of them again."""
    import shutil

    if not shutil.which("cc"):
        return
    module = load_c(CONTENDED)
    probe = fprobe.attach(
        "nest", entry=module["handler_in"], exit=module["handler_out"], entry_data_size=8, nr_maxactive=size
    )
    with probe:
        assert module["contend"](4, 100_000) == 0
        counts = probe.counts
        assert counts.hits == 4 * 300_000
        assert module["at_rest"]() == 0
        assert 1 <= module["peak"]() <= size
        assert counts.missed == counts.missed_nodes
        missed = counts.missed_nodes
        module["nest"](49)
        assert probe.counts.missed_nodes == missed + 50 - size
    with fprobe.attach("nest", action=fprobe.Stat(), nr_maxactive=size) as probe:
        assert module["contend"](4, 100_000) == 0
        missed = probe.counts.missed_nodes
        module["nest"](49)
        assert probe.counts.missed_nodes == missed + 50 - size
