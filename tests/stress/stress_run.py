"""`make stress`: probes come and go at random under calls and signals, and after each step everything has to add up.

Environment: FPROBE_STRESS_SECONDS (600), FPROBE_STRESS_SEED (by the clock; it is printed).
"""

# ruff: noqa: E402  (it is run as a program)

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent.parent
sys.path[:0] = [str(Path(__file__).parent), str(TESTS / "hazards"), str(TESTS)]

from control_block import marks_of
from handlers_native import tally_entry, tally_exit
from kprobe_tallies import TalliedKprobe, TalliedKretprobe, tally_call_data, tally_pre, tally_return_data
from programs import assert_untouched, is_patched, load_c, text_of
from stress_actor import Actor
from stress_kprobes import FOREIGN as KPROBE_FOREIGN
from stress_kprobes import AnyLive, KprobeActor, LiveKprobe, LiveKretprobe, Spot, spots_of
from stress_program import CALLS, NAMES, SOURCE, calls_of

import fprobe
import kprobes
from ftrace.core.runtime import runtime
from ftrace.hit.x86_64.stubs import SITE_SIZE

STEP = 0.5
"""Seconds between two checks, which take 90 ms with coming to rest."""
ALWAYS = [f"{letter}{n}" for letter in "fg" for n in range(8)]
KPROBED, RETURNING = ("f0", "f1", "f9", "g2", "p0", "p2"), ("f1", "f10", "g3", "p0", "p3")
"""Functions every instruction of which, and functions whose return, is probed all the time."""
FOREIGN = "int nothing(void *fp, unsigned long ip) { return 0; }\n"
CHILD_PATIENCE = 30
GROWTH = 24 << 20
"""Bytes by which the process may have grown since it was warm."""


def resident() -> int:
    """Bytes of memory in use."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


class Stress:
    """The run: a program, probes that are always there, three actors in threads of their own."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.module = load_c(SOURCE)
        self.before = text_of(self.module)
        self.original: dict[int, int] = {}
        for text in self.module.texts:
            self.original |= enumerate(ctypes.string_at(text.base, text.size), text.base)
        foreign = load_c(FOREIGN)["nothing"]
        self.spots = spots_of(self.module)
        self.fprobe_actors = [Actor(seed * 2 + number, foreign) for number in range(2)]
        self.kprobe_actor = KprobeActor(seed * 3, self.spots, load_c(KPROBE_FOREIGN))
        self.actors: list[Actor | KprobeActor] = [*self.fprobe_actors, self.kprobe_actor]
        self.always_kprobes = self.kprobe_actor.others = always_kprobes(self.spots)
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
        with self.always, registered(self.always_kprobes):
            self.module["start"]()
            for thread in self._threads:
                thread.start()
            base = 0
            warm, end = (
                time.monotonic() + part for part in (seconds / 10, seconds)
            )  # what came before may take longer
            while time.monotonic() < end and not self.problems:
                self._step()
                if not base and time.monotonic() > warm:
                    base = resident()
            self._finish()
            self._check("at the end")
        if base and resident() - base > GROWTH:
            self.problems.append(f"grew from {base >> 20} to {resident() >> 20} MB")
        kprobes.wait_for_kprobe_optimizer()
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
        calls = calls_of(self.module)
        found = [complaint for actor in self.actors for complaint in actor.complaints(calls)]
        found += [complaint for live in self.always_kprobes for complaint in live.complaints(calls)]
        if self.module["wrong_so_far"]():
            found.append("wrong results")
        found += self._lost() + self._stubs() + self._marked()
        if self.random.random() < 0.3:
            kprobes.wait_for_kprobe_optimizer()
            found += self._text()
        self.problems += [f"{when}: {complaint}" for complaint in found]

    def _lost(self) -> list[str]:
        """Calls of the functions that are always probed are hits or misses, each of them."""
        calls = calls_of(self.module)
        made = sum(calls[name] for name in ALWAYS)
        counts = self.always.counts
        found = [] if counts.hits + counts.missed == made else [f"{made} calls: {counts}"]
        if not counts.hits - counts.missed <= self.notes[1] <= counts.hits == self.notes[0] or self.notes[2]:
            found.append(f"entries, exits, disagreements {list(self.notes)}: {counts}")
        return found

    def _stubs(self) -> list[str]:
        wanted = {name for actor in self.actors for name in actor.covered()} | set(ALWAYS)
        wanted |= {live.spot.name for live in self.always_kprobes if live.is_on}
        return [
            f"{name} is {'not ' * (name in wanted)}patched"
            for name in NAMES
            if is_patched(self.module, name) != (name in wanted)
        ]

    def _text(self) -> list[str]:
        """Every byte is as it was loaded but for stubs and what is armed, when no jump is about to come or go."""
        armed = self.kprobe_actor.armed() | {live.spot for live in self.always_kprobes if live.is_on}
        found, may_differ = [], {site + index for site in self.module.sites for index in range(SITE_SIZE)}
        for spot in armed:
            may_differ |= set(range(spot.address, spot.address + max(spot.length, SITE_SIZE)))
            if not any(self._differs(at) for at in range(spot.address, spot.address + spot.length)):
                found.append(f"{spot} is not armed")
        spans = [(symbol.address, symbol.end) for symbol in map(self.module.symbol, CALLS)]
        stray = [at for start, end in spans for at in range(start, end) if at not in may_differ and self._differs(at)]
        return found + [f"text is changed at {sorted(map(hex, stray))}"] * bool(stray)

    def _differs(self, address: int) -> bool:
        return ctypes.string_at(address, 1)[0] != self.original[address]

    def _marked(self) -> list[str]:
        """Tasks in tracing code, or calls that have not returned, though nobody calls (longjmp leaves dead ones)."""
        fields, control = ("rec", "list", "context", "kprobe"), ("status", "stepping", "trap")
        states = [marks_of(task, fields, control) for task in runtime().tasks() if task.state]
        busy = [state for state in states if any(state.values())]
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
        """Nobody else is here: what is always there goes on, and what is registered here is seen here only."""
        found = [*self._fprobes_in_child(), *self._kprobes_in_child()]
        for complaint in found:
            print("in a child:", complaint, file=sys.stderr, flush=True)
        return len(found)

    def _fprobes_in_child(self) -> Iterator[str]:
        before = self.always.counts
        results = [self.module[f"g{n}"](5) == (5 + n) * 2 for n in range(16)]
        after = self.always.counts
        if not all(results) or after.hits + after.missed - before.hits - before.missed != 16:
            yield f"results {results}, 16 calls: {before} -> {after}"
        notes = (ctypes.c_uint64 * 3)()
        fp = fprobe.fprobe(tally_entry, tally_exit, nr_maxactive=3)
        fp.action = ctypes.addressof(notes)
        fprobe.register_fprobe_syms(fp, ["f15", "g15", "f1"])
        right = self.module["g15"](1) == 32 and self.module["g1"](1) == 4
        fprobe.unregister_fprobe(fp)
        if not right or self.module["g15"](1) != 32 or notes[:] != [3, 3, 0]:
            yield f"3 calls: {notes[:]}"

    def _kprobes_in_child(self) -> Iterator[str]:
        """Those that are always there, and new ones as breakpoints and as jumps."""
        before = [live.counted() for live in self.always_kprobes]
        right = self.module["p0"](5) == 15 and self.module["g2"](1) == 6
        for live, count in zip(self.always_kprobes, before, strict=True):
            wanted = live.spot.name in ("p0", "g2") and live.is_on
            if live.counted() - count != wanted:
                yield f"{int(wanted)} calls, but {live.counted() - count} hits and misses of {live}"
        mine = [TalliedKprobe(addr=spot.address, pre_handler=tally_pre) for spot in self.spots if spot.name == "p0"]
        kprobes.register_kprobes(mine)
        right = right and self.module["p0"](5) == 15
        kprobes.wait_for_kprobe_optimizer()
        right = right and self.module["p0"](6) == 18
        kprobes.unregister_kprobes(mine)
        right = right and self.module["p0"](7) == 21
        wanted = 2 * kprobes.kprobes_enabled()
        if not right or {p.notes[0] for p in mine} != {wanted}:
            yield f"results right {right}, {wanted} calls: {[p.notes[0] for p in mine]}"

    def _multiprocess(self) -> None:
        process = multiprocessing.get_context("fork").Process(target=_exits, args=(self._in_child,))
        process.start()
        process.join(CHILD_PATIENCE)
        if process.exitcode != 0:
            self.problems.append(f"a multiprocessing child: {process.exitcode}")
            process.kill()


def always_kprobes(spots: list[Spot]) -> list[AnyLive]:
    found: list[AnyLive] = [
        LiveKprobe(TalliedKprobe(addr=spot.address, pre_handler=tally_pre), spot, with_post=False)
        for spot in spots
        if spot.name in KPROBED
    ]
    handlers = {"entry_handler": tally_call_data, "handler": tally_return_data}
    return found + [
        LiveKretprobe(TalliedKretprobe(addr=spot.address, maxactive=5000, data_size=8, **handlers), spot, hooks=True)
        for spot in spots
        if spot.is_entry and spot.name in RETURNING
    ]


@contextlib.contextmanager
def registered(lives: list[AnyLive]) -> Iterator[None]:
    """Kprobes that are there for as long as the block lasts."""
    for live in lives:
        if isinstance(live, LiveKprobe):
            kprobes.register_kprobe(live.probe)
        else:
            kprobes.register_kretprobe(live.probe)
    yield
    kprobes.unregister_kprobes([live.probe for live in lives if isinstance(live, LiveKprobe)])
    kprobes.unregister_kretprobes([live.probe for live in lives if isinstance(live, LiveKretprobe)])


def _exits(function: Any) -> None:
    sys.exit(function())


def stress(seconds: float, seed: int) -> str:
    """A run; what was done, in a line. Raises AssertionError with what went wrong."""
    print(f"FPROBE_STRESS_SEED={seed}", flush=True)
    run = Stress(seed)
    begun = time.monotonic()
    run.run(seconds)
    assert not run.problems, "\n".join(run.problems[:20])
    took = time.monotonic() - begun
    of_fprobes, of_kprobes = sum(actor.cycles for actor in run.fprobe_actors), run.kprobe_actor.cycles
    calls = sum(calls_of(run.module).values())
    return (
        f"{run.steps} steps, {of_fprobes + of_kprobes} register/unregister cycles"
        f" ({of_fprobes / took:.0f} of fprobes and {of_kprobes / took:.0f} of kprobes a second),"
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
