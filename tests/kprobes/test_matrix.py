"""A probe's handler that hits a probe, every kind of each, with signals in between: what has to become of it, by the rules."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from matrix import BETWEEN, BETWEEN_FPROBE, INNER, OUTER, Kind, Seen, cells
from sampled import sampled

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
PROGRAM = Path(__file__).with_name("matrix.py")
Act = Callable[[], None]

NORMAL, IRQ, NMI, TRANSITION = "normal", "irq", "nmi", "transition"


def idle() -> None:
    """What a handler does that calls nobody."""


class Thread:
    """A thread by the rules: its context, its locks, and whether it is handling a kprobe."""

    def __init__(self) -> None:
        self.context = NORMAL
        self.held: set[str] = set()
        self.running = False
        self.in_users_signal = False
        self.held_off: list[Act] | None = None
        """Signals that wait for the end of a breakpoint's trap; None: they are taken at once."""

    def trylock(self) -> str | None:
        """FT-52: the context's bit, else once the one that all contexts share."""
        bit = self.context if self.context not in self.held else TRANSITION
        if bit in self.held:
            return None
        self.held.add(bit)
        return bit

    @contextmanager
    def within(self, context: str, *, on_frame: bool = False) -> Iterator[None]:
        """In another context. `on_frame`: on that of a trap, where signals wait (KP-4)."""
        outer, self.context = self.context, context
        before = self.held_off
        self.held_off = [] if on_frame else before
        yield
        self.context = outer
        waiting, self.held_off = self.held_off if on_frame else None, before
        for signal in waiting or []:
            signal()

    def signal(self, handler: Act) -> None:
        """One that the thread sends to itself."""
        if self.held_off is not None:
            self.held_off.append(handler)
        else:
            handler()


@dataclasses.dataclass
class Function:
    """A function with a probe, and what that has counted."""

    thread: Thread
    kind: Kind
    act: Act = idle
    """What the handler does that calls."""
    entries: int = 0
    exits: int = 0
    missed: Counter[str] = dataclasses.field(default_factory=Counter)

    @property
    def seen(self) -> Seen:
        return Seen(self.entries, self.exits, dict(self.missed))

    def call(self) -> None:
        """A call of it: the hit, the body, which does nothing, the return."""
        {"kprobe": self._kprobe, "kretprobe": self._kretprobe, "fprobe": self._fprobe, "ops": self._ops}[
            self.kind.family
        ]()

    def _entered(self) -> None:
        self.entries += 1
        if self.kind.at == "entry":
            self.act()

    def _left(self) -> None:
        self.exits += 1
        if self.kind.at != "entry":
            self.act()

    @property
    def _may_not_enter_python(self) -> bool:
        """HAZARDS 6: a miss, with its own cause, in handlers of signals: the user's, and those of breakpoints."""
        return self.kind.handler == "Python" and (self.thread.in_users_signal or self.thread.held_off is not None)

    # -- kprobes ------------------------------------------------------------------------------------------------

    def _kprobe(self) -> None:
        self._hit_kprobe("nmissed")

    def _hit_kprobe(self, cause: str) -> bool:
        """Whether the handlers have run."""
        if self.kind.place == "ftrace":
            return self._hit_on_ftrace(cause)
        if self.thread.running:  # KP-43, KP-72
            self.missed[cause] += 1
            return False
        if self.kind.place == "jump":
            return self._handle(cause)
        with self.thread.within(NMI, on_frame=self.kind.handler == "native"):  # FT-56
            return self._handle(cause)

    def _hit_on_ftrace(self, cause: str) -> bool:
        """KP-52"""
        bit = self.thread.trylock()
        if bit is None:  # KP-45: dropped, uncounted
            return False
        ran = False
        if self.thread.running:
            self.missed[cause] += 1
        else:
            ran = self._handle(cause)
        self.thread.held.remove(bit)
        return ran

    def _handle(self, cause: str) -> bool:
        if self._may_not_enter_python:
            self.missed[cause] += 1
            return False
        self.thread.running = True  # KP-46
        self._entered()
        if self.kind.at == "post":
            self._left()
        self.thread.running = False
        return True

    def _kretprobe(self) -> None:
        if not self._hit_kprobe("kp.nmissed"):  # KP-83
            return
        self.thread.running = True  # KP-79
        self._left()
        self.thread.running = False

    # -- fprobes and ops ----------------------------------------------------------------------------------------

    def _fprobe(self) -> None:
        if self._may_not_enter_python:
            self.missed["missed_context"] += 1
            return
        if self._locked(self._enter_fprobe):
            self._locked(self._left)  # FP-37, FP-38: no kprobe_running(), and no kprobe_busy

    def _locked(self, handle: Callable[[], Any]) -> bool:
        """FP-29, FP-37"""
        bit = self.thread.trylock()
        if bit is None:
            self.missed["missed_recursion"] += 1
            return False
        ran = handle() is not False
        self.thread.held.remove(bit)
        return ran

    def _enter_fprobe(self) -> bool:
        """FP-31, FP-35, FP-36"""
        if self.kind.shared and self.thread.running:
            self.missed["missed_busy"] += 1
            return False
        was_running = self.thread.running
        self.thread.running = was_running or self.kind.shared
        self._entered()
        self.thread.running = was_running
        return True

    def _ops(self) -> None:
        """FT-42: a bare callback has no lock."""
        self._entered()


def expected(outer: Kind, inner: Kind, between: str) -> tuple[Seen, Seen]:
    """What the two probes count in one call of a function with the outer one."""
    thread = Thread()
    within = Function(thread, inner)
    depth = 0

    def in_irq() -> None:
        with thread.within(IRQ):
            within.call()

    def in_users_signal() -> None:
        outermost, thread.in_users_signal = thread.in_users_signal, True
        within.call()
        thread.in_users_signal = outermost

    def again() -> None:
        nonlocal depth
        if depth:
            within.call()
            return
        depth += 1
        hit.call()
        depth -= 1

    acts: dict[str, Act] = {
        "nothing": within.call,
        "itself": again,
        "fprobe": Function(thread, BETWEEN_FPROBE, within.call).call,
        "irq": lambda: thread.signal(in_irq),
        "signal": lambda: thread.signal(in_users_signal),
    }
    hit = Function(thread, outer, acts[between])
    hit.call()
    return hit.seen, within.seen


Cell = tuple[Kind, Kind, str]


def observe(*words: str, limit: float) -> dict[Cell, dict[str, Any]]:
    """The cells, from one process."""
    command = [sys.executable, "-X", "faulthandler", str(PROGRAM), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = map(json.loads, done.stdout.splitlines())
    return {(Kind(*cell["outer kind"]), Kind(*cell["inner kind"]), cell["between"]): cell for cell in found}


def assert_by_the_rules(observed: dict[Cell, dict[str, Any]], chosen: list[Cell]) -> None:
    found, wanted = {}, {}
    for outer, inner, between in chosen:
        cell, name = observed[outer, inner, between], f"{outer}, {between}, {inner}"
        found[name] = (Seen(**cell["outer"]), Seen(**cell["inner"]), cell["wrong"], cell["left"])
        wanted[name] = (*expected(outer, inner, between), 0, 0)
    assert found == wanted


@pytest.fixture(scope="module")
def observed() -> dict[Cell, dict[str, Any]]:
    return observe(limit=100)


@pytest.mark.parametrize("between", sampled(BETWEEN, 40))
@pytest.mark.parametrize("outer", OUTER, ids=str)
def test_a_handler_that_hits_a_probe(outer, between, observed):
    """KP-4, KP-43, KP-45, KP-46, KP-52, KP-72, KP-79, KP-83, FP-31, FP-35..38, FP-51, FT-42, FT-52, FT-54, FT-56"""
    chosen = [cell for cell in cells(whole=False) if (cell[0], cell[2]) == (outer, between)]
    assert len(chosen) >= len(INNER) // len(BETWEEN)
    assert_by_the_rules(observed, chosen)


@pytest.mark.stress
@pytest.mark.timeout(600)
def test_every_handler_that_hits_a_probe_with_everything_between():
    every = list(cells(whole=True))
    assert len(every) == len(OUTER) * len(INNER) * len(BETWEEN)
    assert_by_the_rules(observe("whole", limit=500), every)


def test_the_model_tells_the_outcomes_apart():
    """So that it cannot agree with everything."""
    inner = {"shared": Kind("fprobe", at="exit", shared=True), "plain": Kind("fprobe", at="exit")}
    entry, exit_ = Kind("fprobe", at="entry", shared=True), Kind("fprobe", at="exit", shared=True)
    assert expected(entry, inner["shared"], "nothing")[1] == Seen(0, 0, {"missed_busy": 1})  # FP-31
    assert expected(exit_, inner["shared"], "nothing")[1] == Seen(1, 1, {})  # FP-38
    assert expected(entry, inner["plain"], "nothing")[1] == Seen(1, 1, {})  # FP-36
    assert expected(Kind("fprobe"), inner["plain"], "itself")[1] == Seen(0, 0, {"missed_recursion": 1})  # FP-51
    assert expected(Kind("fprobe"), Kind("kprobe"), "itself")[1] == Seen(0, 0, {})  # KP-45
    assert expected(Kind("kprobe"), Kind("kprobe"), "nothing")[1] == Seen(0, 0, {"nmissed": 1})  # KP-43
    assert expected(Kind("kprobe", "int3"), Kind("kprobe"), "irq")[1] == Seen(1, 0, {})  # KP-4
