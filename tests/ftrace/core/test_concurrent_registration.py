"""Threads that register and unregister at the same time, with membarrier(2) and without it."""

# ruff: noqa: ARG005  (the signature of a handler is given)

from __future__ import annotations

from collections import Counter

import pytest
from isolation import isolated


def _three_threads():
    import threading

    from programs import assert_untouched, basic

    import fprobe

    module = basic()
    rounds = []

    def work(name):
        for _ in range(200):
            with fprobe.attach(name, action=fprobe.Count()) as probe:
                module[name](1)
            rounds.append((probe.counts.hits, probe.counts.missed))

    threads = [threading.Thread(target=work, args=(name,)) for name in ("leaf", "other", "factorial")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(rounds) == {(1, 0): 600}
    assert_untouched()


@isolated
def test_with_membarrier():
    _three_threads()


@pytest.mark.stress
@isolated(FPROBE_DENY="membarrier")
def test_without_membarrier():
    """The page whose protection is changed instead is everybody's: none may fault when another has taken the right away."""
    _three_threads()


@pytest.mark.stress
@isolated(FPROBE_DENY="memfd,membarrier")
def test_without_membarrier_and_memfd():
    _three_threads()


@isolated
def test_fp20_threads_that_register_the_same_fprobe():
    """One of them wins, and what it has registered stays as it is."""
    import errno
    import threading

    from programs import basic

    import fprobe
    from fprobe.registration import functions_of

    module = basic()
    fp = fprobe.fprobe(lambda *hit: 0, lambda *hit: None)
    together = threading.Barrier(4)
    outcomes = []

    def register():
        for _ in range(200):
            together.wait()
            try:
                fprobe.register_fprobe(fp, "leaf")
                outcomes.append(0)
            except OSError as error:
                outcomes.append(error.errno)
            if together.wait() == 0:
                names.append([location.name for location in functions_of(fp).each()])
                fprobe.unregister_fprobe(fp)

    names = []
    threads = [threading.Thread(target=register) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names == [["leaf"]] * 200
    assert outcomes.count(0) == 200 and outcomes.count(errno.EBUSY) == 600
    assert module["leaf"](1) == 2
