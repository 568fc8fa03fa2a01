"""Orders of what can be done to the probes at one address, each carried out in a process of its own.

A step is `optimise`, or a verb and one of the probes: `register kprobe`, `disable kretprobe`. After each step the function
is called: its results are what they always were, and each probe that is registered and enabled has seen the calls.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import fprobe
import kprobes
from kprobes.jump import worker
from kprobes.jump.jumps import Jump
from sandbox.loading.module import loaded_modules
from sandbox.native import u64
from sandbox.x86_64.puns import Window

OPTIMISE = "optimise"
CALLS = 2
TIME_LIMIT = 20
"""Seconds for one order."""

seen = fprobe.Array(u64, 8, shared=True)
"""What native handlers have counted, and below Python ones."""
noted = [0] * 8


@kprobes.native
def first_pre(p, regs):
    seen[0] += 1


@kprobes.native
def second_pre(p, regs):
    seen[1] += 1


@kprobes.native
def called(ri, regs):
    seen[2] += 1


@kprobes.native
def returned(ri, regs):
    seen[3] += 1


@kprobes.native
def second_returned(ri, regs):
    seen[4] += 1


@fprobe.native
def entered(fp, ip, ret_ip, regs, data):
    seen[5] += 1


@fprobe.native
def left(fp, ip, ret_ip, regs, data):
    seen[6] += 1


def _python(index: int) -> Callable[..., None]:
    def handler(*_: Any) -> None:
        noted[index] += 1

    return handler


class Steps(NamedTuple):
    """The verbs for one probe, and which of `seen` its handlers count."""

    verbs: dict[str, Callable[[], None]]
    counts: Sequence[int]


def _steps(home: Any, kind: str, probe: Any, counts: Sequence[int], *where: Any) -> Steps:
    def again() -> None:
        point = getattr(probe, "kp", probe)
        point.flags = 0
        if not where:
            point.addr = None
        getattr(home, f"register_{kind}")(probe, *where)

    verbs = {verb: partial(getattr(home, f"{verb}_{kind}"), probe) for verb in ("unregister", "disable", "enable")}
    return Steps({"register": again, **verbs}, counts)


def _kprobe(symbol: str, handler: Any, counts: int) -> Steps:
    return _steps(kprobes, "kprobe", kprobes.kprobe(symbol_name=symbol, pre_handler=handler), [counts])


def _kretprobe(symbol: str, entry: Any, leave: Any, counts: Sequence[int]) -> Steps:
    made = kprobes.kretprobe(symbol_name=symbol, entry_handler=entry, handler=leave)
    return _steps(kprobes, "kretprobe", made, counts)


def _fprobe(symbol: str, entry: Any, leave: Any, counts: Sequence[int]) -> Steps:
    owner, _, name = symbol.rpartition(":")
    return _steps(fprobe, "fprobe", fprobe.fprobe(entry, leave), counts, name if owner in loaded_modules else symbol)


def probes_at(symbol: str, names: Sequence[str], native: bool) -> dict[str, Steps]:
    """New probes of these names on a function."""
    python = [_python(index) for index in range(7)]
    handlers: list[Any] = (
        [first_pre, second_pre, called, returned, second_returned, entered, left] if native else python
    )
    kinds = {
        "kprobe": lambda: _kprobe(symbol, handlers[0], 0),
        "second kprobe": lambda: _kprobe(symbol, handlers[1], 1),
        "kretprobe": lambda: _kretprobe(symbol, handlers[2], handlers[3], [2, 3]),
        "second kretprobe": lambda: _kretprobe(symbol, None, handlers[4], [4]),
        "fprobe": lambda: _fprobe(symbol, handlers[5], handlers[6], [5, 6]),
    }
    return {name: kinds[name]() for name in names}


# -- orders -------------------------------------------------------------------------------------------------------

Order = tuple[str, ...]
_NEXT = {"": ("register",), "on": ("disable", "unregister"), "off": ("enable", "unregister")}
_THEN = {"register": "on", "enable": "on", "disable": "off", "unregister": ""}


def _followers(order: Order, names: Sequence[str]) -> list[str]:
    """The steps that are possible behind an order: nothing is optimised that has been, or while nothing is there."""
    states = states_after(order)
    steps = [f"{verb} {name}" for name in names for verb in _NEXT[states.get(name, "")]]
    if any(states.values()) and order[-1] != OPTIMISE:
        steps.append(OPTIMISE)
    return steps


def states_after(order: Order) -> dict[str, str]:
    """By probe: "on", "off", or "" if it is not registered."""
    states: dict[str, str] = {}
    for step in order:
        if step != OPTIMISE:
            verb, _, name = step.partition(" ")
            states[name] = _THEN[verb]
    return states


def all_orders(names: Sequence[str], length: int) -> Iterator[Order]:
    """Every order of so many steps."""
    orders: list[Order] = [()]
    for _ in range(length):
        orders = [(*order, step) for order in orders for step in _followers(order, names)]
    return iter(orders)


def some_orders(names: Sequence[str], length: int, number: int, seed: object) -> list[Order]:
    """So many, at random, the same ones for the same seed."""
    rng = random.Random(repr(seed))
    orders = []
    for _ in range(number):
        order: Order = ()
        for _ in range(length):
            order = (*order, rng.choice(_followers(order, names)))
        orders.append(order)
    return orders


# -- carrying them out --------------------------------------------------------------------------------------------


def _counts() -> Counter[int]:
    return Counter({which: int(seen[which]) + noted[which] for which in range(8)})


def _carry_out(call: Callable[[], Any], symbol: str, order: Order, native: bool) -> str:
    """What is wrong, if anything."""
    expected = call()
    names = list(dict.fromkeys(step.partition(" ")[2] for step in order if step != OPTIMISE))
    probes = probes_at(symbol, names, native)
    for index, step in enumerate(order):
        if step == OPTIMISE:
            kprobes.wait_for_kprobe_optimizer()
        else:
            verb, _, name = step.partition(" ")
            probes[name].verbs[verb]()
        states = states_after(order[: index + 1])
        before = _counts()
        results = [call() for _ in range(CALLS)]
        hits = dict((_counts() - before).items())
        wanted = {which: CALLS for name, probe in probes.items() if states.get(name) == "on" for which in probe.counts}
        if results != [expected] * CALLS:
            return f"after {step!r} the results are {results}, not {expected!r}"
        if hits != wanted:
            return f"after {step!r} the counts are {hits}, not {wanted}"
    return ""


def prepare(symbol: str, names: Sequence[str], native: bool) -> None:
    """What the children need not do each for itself: compile, link, import. `symbol`: a function that no order is about."""
    worker.DELAY = 60
    probes = probes_at(symbol, names, native).values()
    for verb in ("register", "unregister"):
        for probe in probes:
            probe.verbs[verb]()
        kprobes.wait_for_kprobe_optimizer()


def make_jumps_absorb() -> None:
    """From now on no jump lands that is no longer than its instruction: it absorbs those behind it, or is not made."""
    land = Jump._land

    def absorbing(self: Jump, choices: Sequence[Window], own: int, read: Any) -> bool:
        return bool(choices) and bool(choices[0].absorbed) and land(self, choices, own, read)

    Jump._land = absorbing  # type: ignore[method-assign]


def check(call: Callable[[], Any], symbol: str, orders: Iterable[Order], native: bool) -> None:
    """Raise AssertionError naming those of the orders, each carried out in a child, that do not end well, and how."""
    found = []
    for order in orders:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(TIME_LIMIT)
            try:
                said = _carry_out(call, symbol, order, native)
            except BaseException as error:
                said = f"{type(error).__name__}: {error}"
            os.write(writing, said.encode()[:4000])
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            said = pipe.read().decode()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if said or status:
            found.append(f"{symbol}: {'; '.join(order)}: {said or signal.Signals(-status).name}")
    assert not found, "\n".join(found)
