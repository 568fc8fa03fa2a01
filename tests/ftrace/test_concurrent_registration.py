"""Threads that register and unregister at the same time, with membarrier(2) and without it."""

from __future__ import annotations

from isolation import isolated


def _three_threads():
    import threading
    import time

    from programs import assert_untouched, basic

    import fprobe

    module = basic()
    end, rounds = time.monotonic() + 1.5, []

    def work(name):
        while time.monotonic() < end:
            with fprobe.attach(name, action=fprobe.Count()) as probe:
                module[name](1)
            rounds.append(probe.hits)

    threads = [threading.Thread(target=work, args=(name,)) for name in ("leaf", "other", "factorial")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(rounds) > 50 and set(rounds) == {1}
    assert_untouched()


@isolated
def test_with_membarrier():
    _three_threads()


@isolated(FPROBE_DENY="membarrier")
def test_without_membarrier():
    """The page whose protection is changed instead is everybody's: none may fault when another has taken the right away."""
    _three_threads()


@isolated(FPROBE_DENY="memfd,membarrier")
def test_without_membarrier_and_memfd():
    _three_threads()
