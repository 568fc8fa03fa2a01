"""The concurrency suite: a short run; `make stress` has the long one. Statements: FP-22, FP-26, FP-28, FP-40, FP-44, FP-47."""

# ruff: noqa: ARG005  (the signature of a handler is given)

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from pathlib import Path

import isolation
import pytest
from isolation import isolated
from sampled import in_stress, sampled

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
RUN = Path(__file__).with_name("stress_run.py")


def run(seconds: float, **environment: str) -> str:
    """The suite in a process of its own; the last line that it prints."""
    given = {"FPROBE_STRESS_SECONDS": str(seconds), **environment}
    done = isolation.run([sys.executable, "-X", "faulthandler", str(RUN)], seconds * 2 + 60, **given)
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stdout.splitlines()[-1]


@pytest.mark.timeout(100)
def test_probes_come_and_go_at_random_under_calls_signals_and_forks() -> None:
    print(run(0.5))


MASKS = {
    "no wide vectors": {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX2,-AVX,-ERMS"},
    "breakpoints": {"FPROBE_FORCE": "breakpoints"},
    "no memfd, no membarrier": {"FPROBE_DENY": "memfd,membarrier"},
    "one CPU": {},
}


@pytest.mark.stress
@pytest.mark.parametrize(
    "mask", ["breakpoints", *(pytest.param(m, marks=pytest.mark.stress) for m in MASKS if m != "breakpoints")]
)
@pytest.mark.timeout(100)
def test_the_same_on_machines_that_lack_something(mask: str) -> None:
    """HAZARDS: this class of machine hides bugs. `make masks` runs the whole suite so."""
    before = os.sched_getaffinity(0)
    try:
        if mask == "one CPU":
            os.sched_setaffinity(0, {min(before)})
        print(run(0.2, **MASKS[mask]))
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.stress
@pytest.mark.timeout(0)
def test_probes_come_and_go_at_random_for_as_long_as_asked() -> None:
    print(run(float(os.environ.get("FPROBE_STRESS_SECONDS", "600"))))


def _program():
    sys.path[:0] = [str(RUN.parent)]
    from programs import load_c
    from stress_program import SOURCE

    return load_c(SOURCE)


@pytest.mark.parametrize("where", ["entry", in_stress("exit")])
@isolated
def test_fp44_unregistering_waits_for_a_handler_that_sleeps(where):
    import fprobe

    module = _program()
    inside, done = threading.Event(), []

    def handler(*hit):
        inside.set()
        time.sleep(0.05)
        done.append(1)

    probe = fprobe.attach("many", **{where: handler}).attach()
    thread = threading.Thread(target=module["many"], args=range(8))
    thread.start()
    assert inside.wait(30)
    probe.detach()
    assert done == [1]
    thread.join()


@pytest.mark.parametrize("slowed", sampled(["fprobe", "breakpoint", "jump"], 1))
@isolated
def test_fp44_unregistering_does_not_wait_for_another_probes_handler(slowed):
    """... nor for a kprobe's."""
    import fprobe
    import kprobes

    module = _program()
    inside, go_on, hits = threading.Event(), threading.Event(), []

    def handler(*hit):
        hits.append(1)
        inside.set()
        go_on.wait(20)

    kprobes.set_kprobes_optimization(int(slowed == "jump"))
    slow = fprobe.attach("f1", entry=handler) if slowed == "fprobe" else kprobes.attach("p1", pre=handler)
    with slow:
        kprobes.wait_for_kprobe_optimizer()
        thread = threading.Thread(target=module["f1" if slowed == "fprobe" else "p1"], args=(1,))
        thread.start()
        assert inside.wait(30)
        for _ in range(20):  # would wait for go_on
            with fprobe.attach("deep", entry=lambda *hit: 0, exit=lambda *hit: None) as probe:
                assert module["deep"](3) == 3
            assert probe.hits == 4
        assert not go_on.is_set() and thread.is_alive()
        go_on.set()
        thread.join()
    assert len(hits) == 1 and (slowed != "fprobe" or slow.hits == 1)


@isolated
def test_fp44_unregistering_does_not_wait_for_a_probed_function_that_blocks():
    import fprobe

    module = _program()
    done, exits = [], []
    probe = fprobe.attach("waits", exit=lambda *hit: exits.append(1)).attach()
    thread = threading.Thread(target=lambda: done.append(module["waits"](2000)))
    thread.start()
    while not probe.hits:
        time.sleep(0.001)
    probe.detach()
    assert done == []
    thread.join()
    assert done == [2000] and exits == []  # FP-40, FP-47: it returns well, and without the handler
