"""Jumps of the whole demo program come and go at random while two threads run it."""

from __future__ import annotations

import contextlib
import random
import threading
import time

import pytest
from isolation import isolated

SECONDS = 20


@isolated(timeout=100)
@pytest.mark.stress
@pytest.mark.timeout(110)
@pytest.mark.parametrize("extent", ["alone", "dense"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_jumps_of_a_whole_program(extent, seed):
    """KP-60..73"""
    from instructions import boundaries

    import kprobes
    from benchmarks.jump_coverage import functions_of_program
    from kprobes import Extent, set_extent
    from sandbox import demo, load

    @kprobes.native
    def plain(p, regs):
        pass

    @kprobes.native
    def with_regs(p, regs):
        regs.orig_ax = regs.ax

    program = load(demo.source(), name="demo.jumps")
    everywhere = [at for start, end in functions_of_program(program) for at in boundaries(start, end)]
    expected = program["demo_main"](3)
    stop, wrong = threading.Event(), []

    def run():
        while not stop.is_set():
            if program["demo_main"](3) != expected:
                wrong.append(1)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    set_extent(Extent(extent))
    rng, live = random.Random(seed), []
    until = time.monotonic() + SECONDS
    while time.monotonic() < until and not wrong:
        if len(live) < 1500:
            for at in rng.sample(everywhere, 60):
                p = kprobes.kprobe(addr=at, pre_handler=rng.choice([plain, with_regs]))
                with contextlib.suppress(OSError):
                    kprobes.register_kprobe(p)
                    live.append(p)
        else:
            rng.shuffle(live)
            kprobes.unregister_kprobes(live[:300])
            del live[:300]
        if rng.random() < 0.4:
            kprobes.wait_for_kprobe_optimizer()
        if rng.random() < 0.3:
            kprobes.set_kprobes_optimization(rng.choice([0, 1, 1, 1]))
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    kprobes.unregister_kprobes(live)
    kprobes.wait_for_kprobe_optimizer()
    assert program["demo_main"](3) == expected
