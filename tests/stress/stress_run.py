"""`make stress`: probes come and go at random under calls and signals, and after each step everything has to add up.

Environment: FPROBE_STRESS_SECONDS (600), FPROBE_STRESS_SEED (by the clock; it is printed).
"""

# ruff: noqa: E402  (it is run as a program)

from __future__ import annotations

import ctypes
import multiprocessing
import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent.parent
sys.path[:0] = [str(Path(__file__).parent), str(TESTS / "hazards"), str(TESTS)]

from handlers_native import tally_entry, tally_exit
from programs import assert_untouched, is_patched, load_c, text_of
from stress_actor import Actor
from stress_program import NAMES, SOURCE, calls_of

import fprobe
from ftrace.runtime import runtime

STEP = 0.1
"""Seconds between two checks."""
ALWAYS = [f"{letter}{n}" for letter in "fg" for n in range(8)]
FOREIGN = "int nothing(void *fp, unsigned long ip) { return 0; }\n"
CHILD_PATIENCE = 30
GROWTH = 24 << 20
"""Bytes by which the process may have grown since it was warm."""


def resident() -> int:
    """Bytes of memory in use."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


class Stress:
    """The run: a program, a probe that is always there, two actors in threads of their own."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.module = load_c(SOURCE)
        self.before = text_of(self.module)
        foreign = load_c(FOREIGN)["nothing"]
        self.actors = [Actor(seed * 2 + number, foreign) for number in range(2)]
        self.notes = (ctypes.c_uint64 * 3)()
        self.always = fprobe.attach(ALWAYS, entry=tally_entry, exit=tally_exit, entry_data_size=8, nr_maxactive=5000)
        self.always.fp.action = ctypes.addressof(self.notes)
        self.problems: list[str] = []
        self.forced = runtime().force_breakpoints
        self.steps = self.forks = 0
        self._acting, self._over, self._idle = threading.Event(), threading.Event(), threading.Semaphore(0)
        self._threads = [threading.Thread(target=self._act, args=(actor,)) for actor in self.actors]

    def run(self, seconds: float) -> None:
        """For that long; `problems` says what was found."""
        warm, base = time.monotonic() + seconds / 10, 0
        end = time.monotonic() + seconds
        with self.always:
            self.module["start"]()
            for thread in self._threads:
                thread.start()
            while time.monotonic() < end and not self.problems:
                self._step()
                if not base and time.monotonic() > warm:
                    base = resident()
            self._finish()
            self._check("at the end")
        if base and resident() - base > GROWTH:
            self.problems.append(f"grew from {base >> 20} to {resident() >> 20} MB")
        if text_of(self.module) != self.before:
            self.problems.append("text is not as it was loaded")
        assert_untouched()

    def _step(self) -> None:
        self._acting.set()
        self.module["go_on"]()
        for _ in range(4):
            time.sleep(STEP / 4)
            self.module["one_more"](self.random.getrandbits(40))
            runtime().force_breakpoints = self.forced or self.random.random() < 0.3
            if self.random.random() < 0.05:
                self._fork()
            elif self.random.random() < 0.01:
                self._multiprocess()
        self._acting.clear()
        for _ in self._threads:
            self._idle.acquire()
        self.module["come_to_rest"]()
        self.steps += 1
        self._check(f"after step {self.steps}")

    def _act(self, actor: Actor) -> None:
        while not self._over.is_set():
            self._acting.wait()
            try:
                while self._acting.is_set() and not self._over.is_set():
                    actor.act()
            except Exception as error:  # told by the main thread
                self.problems.append(f"{type(error).__name__}: {error}")
                self._over.set()
            self._idle.release()
            while self._acting.is_set() and not self._over.is_set():
                time.sleep(0.001)
            while not self._acting.is_set() and not self._over.is_set():
                time.sleep(0.001)

    def _finish(self) -> None:
        self._over.set()
        self._acting.set()
        for thread in self._threads:
            thread.join()
        if self.module["finish"]():
            self.problems.append("wrong results")
        for actor in self.actors:
            actor.end()

    def _check(self, when: str) -> None:
        found = [complaint for actor in self.actors for complaint in actor.complaints()]
        if self.module["wrong_so_far"]():
            found.append("wrong results")
        found += self._lost() + self._text() + self._marked()
        self.problems += [f"{when}: {complaint}" for complaint in found]

    def _lost(self) -> list[str]:
        """Calls of the functions that are always probed are hits or misses, each of them."""
        calls = calls_of(self.module)
        made = sum(calls[name] for name in ALWAYS)
        counts = self.always.counts
        found = [] if counts.hits + counts.missed == made else [f"{made} calls: {counts}"]
        if not counts.hits - counts.missed <= self.notes[1] <= counts.hits == self.notes[0] or self.notes[2]:
            found.append(f"entries, exits, disagreements {list(self.notes)}: {counts}")
        everything = sum(calls.values())
        return found + [
            f"{everything} calls since the start: {live.fp.counts}"
            for actor in self.actors
            for live in actor.live
            if live.fp.counts.hits + live.fp.counts.missed > everything
        ]

    def _text(self) -> list[str]:
        wanted = {name for actor in self.actors for name in actor.covered()} | set(ALWAYS)
        return [
            f"{name} is {'not ' * (name in wanted)}patched"
            for name in NAMES
            if is_patched(self.module, name) != (name in wanted)
        ]

    def _marked(self) -> list[str]:
        """Tasks in tracing code, or calls that have not returned, though nobody calls (longjmp leaves dead ones)."""
        busy = [(task.tid, task.rec, task.list) for task in runtime().tasks() if task.state and (task.rec or task.list)]
        return [f"still marked as inside: {busy}"] if busy else []

    # -- processes ----------------------------------------------------------------------------------------------

    def _fork(self) -> None:
        self.forks += 1
        child = os.fork()
        if child == 0:
            status = 99
            try:
                status = self._in_child()
            finally:
                os._exit(status)
        end = time.monotonic() + CHILD_PATIENCE
        while (done := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < end:
            time.sleep(0.002)
        if done == (0, 0):
            os.kill(child, 6)
            done = os.waitpid(child, 0)
            self.problems.append("a child did not end")
        if done[1]:
            self.problems.append(f"a child ended with status {done[1]:#x}")

    def _in_child(self) -> int:
        """Nobody else is here: the probe that is always there goes on, and what is registered here is seen here only."""
        before = self.always.counts
        results = [self.module[f"g{n}"](5) == (5 + n) * 2 for n in range(16)]
        after = self.always.counts
        if not all(results) or after.hits + after.missed - before.hits - before.missed != 16:
            return 1
        notes = (ctypes.c_uint64 * 3)()
        fp = fprobe.fprobe(tally_entry, tally_exit, nr_maxactive=3)
        fp.action = ctypes.addressof(notes)
        fprobe.register_fprobe_syms(fp, ["f15", "g15", "f1"])
        right = self.module["g15"](1) == 32 and self.module["g1"](1) == 4
        if not right or notes[0] != 3 or notes[1] != 3:
            return 2
        fprobe.unregister_fprobe(fp)
        return 0 if self.module["g15"](1) == 32 and notes[0] == 3 else 3

    def _multiprocess(self) -> None:
        process = multiprocessing.get_context("fork").Process(target=_exits, args=(self._in_child,))
        process.start()
        process.join(CHILD_PATIENCE)
        if process.exitcode != 0:
            self.problems.append(f"a multiprocessing child: {process.exitcode}")
            process.kill()


def _exits(function: Any) -> None:
    sys.exit(function())


def stress(seconds: float, seed: int) -> str:
    """A run; what was done, in a line. Raises AssertionError with what went wrong."""
    print(f"FPROBE_STRESS_SEED={seed}", flush=True)
    run = Stress(seed)
    begun = time.monotonic()
    run.run(seconds)
    assert not run.problems, "\n".join(run.problems[:20])
    cycles = sum(actor.cycles for actor in run.actors)
    calls = sum(calls_of(run.module).values())
    return (
        f"{run.steps} steps, {cycles} register/unregister cycles ({cycles / (time.monotonic() - begun):.0f} a second),"
        f" {calls} calls, {run.module['signalled']()} signals, {run.forks} forks, {resident() >> 20} MB"
    )


if __name__ == "__main__":
    import faulthandler

    faulthandler.enable()
    print(
        stress(
            float(os.environ.get("FPROBE_STRESS_SECONDS", "600")),
            int(os.environ.get("FPROBE_STRESS_SEED", str(time.time_ns() % 1_000_000))),
        )
    )
