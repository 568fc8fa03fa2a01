"""One object, two threads: both do something to it at the same time, again and again, and it is always in one state.

A verb may be refused with an errno of those that its document names. Afterwards the object says what it is, and calls of its
function are seen accordingly.
"""

from __future__ import annotations

import errno
import itertools
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import fprobe
import kprobes
from sandbox.native import u64

REFUSED = {errno.EINVAL, errno.EBUSY}
CALLS = 2
seen = fprobe.Array(u64, 2, shared=True)


@kprobes.native
def pre(p, regs):
    seen[0] += 1


@kprobes.native
def returned(ri, regs):
    seen[0] += 1


@fprobe.native
def entered(fp, ip, ret_ip, regs, data):
    seen[0] += 1


@fprobe.native
def left(fp, ip, ret_ip, regs, data):
    seen[1] += 1


class Shared(NamedTuple):
    """What threads share. `on`: whether handlers are to run.

    `exclusive`: verbs of which two at once cannot both succeed. `idempotent`: those that are never refused. `ways`: the verbs
    that lead in and out.
    """

    verbs: dict[str, Callable[[], Any]]
    registered: Callable[[], bool]
    on: Callable[[], bool]
    call: Callable[[], Any]
    seen: Callable[[], int]
    exclusive: tuple[str, ...] = ("register",)
    ways: tuple[str, str] = ("register", "unregister")
    idempotent: tuple[str, ...] = ()


def _attempt(verb: Callable[[], Any], delay: float, together: threading.Barrier, outcomes: list[Any]) -> None:
    together.wait()
    until = time.perf_counter() + delay
    while time.perf_counter() < until:
        pass
    try:
        verb()
        outcomes.append(0)
    except OSError as error:
        outcomes.append(error.errno)
    except BaseException as error:
        outcomes.append(repr(error))


def _both(shared: Shared, pair: tuple[str, str], delays: tuple[float, float]) -> list[Any]:
    """Carry out both verbs at once: 0, an errno, or an error, for each."""
    outcomes: list[Any] = []
    together = threading.Barrier(2)
    threads = [
        threading.Thread(target=_attempt, args=(shared.verbs[verb], delay, together, outcomes))
        for verb, delay in zip(pair, delays, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def _wrong(shared: Shared, pair: tuple[str, str], outcomes: list[Any]) -> str:
    """What is wrong after that, if anything. Other threads may be calling the function too."""
    if not all(outcome == 0 or outcome in REFUSED for outcome in outcomes):
        return f"ended with {outcomes}"
    if pair[0] == pair[1] and pair[0] in shared.exclusive and outcomes.count(0) > 1:
        return "both succeeded"
    if all(verb in shared.idempotent for verb in pair) and any(outcomes):
        return f"ended with {outcomes}"
    before, registered, on = shared.seen(), shared.registered(), shared.on()
    for _ in range(CALLS):
        shared.call()
    hits = shared.seen() - before
    if (registered and on and hits < CALLS) or (not registered and hits):
        return f"{hits} of {CALLS} calls are seen, registered: {registered}, on: {on}"
    return ""


def contend(shared: Shared, rounds: int) -> None:
    """Every pair of verbs, while the object is registered and while it is not, and a third thread calls the function.

    Pairs of verbs that lead in or out get so many `rounds`, the others a fifth. Raises AssertionError naming the first that
    goes wrong.
    """
    sys.setswitchinterval(1e-5)
    rng = random.Random(1)
    pairs = itertools.combinations_with_replacement(shared.verbs, 2)
    with Caller(shared.call):
        for pair, registered in itertools.product(pairs, (False, True)):
            for _ in range(rounds if set(pair) <= set(shared.ways) else rounds // 5):
                _bring(shared, registered)
                delays = rng.random() * 1e-4, rng.random() * 1e-4
                wrong = _wrong(shared, pair, _both(shared, pair, delays))
                assert not wrong, f"{pair}, {'registered' if registered else 'not registered'} before: {wrong}"
    _bring(shared, False)


def _bring(shared: Shared, registered: bool) -> None:
    """To begin with: newly registered, or not."""
    if shared.registered():
        shared.verbs[shared.ways[1]]()
    if registered:
        shared.verbs[shared.ways[0]]()


class Caller:
    """A thread that calls a function for as long as the block runs."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._ended.is_set():
            self._call()

    def __enter__(self) -> Caller:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
