"""The rows of kprobes: breakpoints, boosted and stepped, jumps, return probes.

The target is the same function of two instructions, in a program without stubs (a five-byte `lea`, and `ret`). Every hit is
counted by its handler. The kernel's document names its figures by letters, which stand behind what is measured here:
k (breakpoint, stepped), b (boosted), o (optimised), r, rb, ro (return probes on those), and kr.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"  (the decorator fills in what handlers take)

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial

import kprobes
import sandbox
from benchmarks import program, scale
from benchmarks.measure import Row, Sample
from fprobe import Array
from sandbox import Module
from sandbox.native import i32, u64, void

REGISTERED = 10_000
_TAIL = 5
"""Offset of the `ret` in the target."""

counted = Array(u64, 2)


@kprobes.native
def count(p, regs) -> i32:
    counted[0] += 1
    return 0


@kprobes.native
def nothing(p, regs, flags) -> void:
    pass


@kprobes.native
def returned(ri, regs) -> void:
    counted[0] += 1


@kprobes.native
def returned_value(ri, regs) -> void:
    counted[0] += 1
    counted[1] += regs.ax


@cache
def plain() -> Module:
    """The program without stubs."""
    return sandbox.load(program.program_text(), name="bench-plain", opt=2, flavour="none")


RETURNS = "bench-returns"


@cache
def returns() -> Module:
    """The same for return probes: where one has been, the detour of a jump stays ready for the next."""
    return sandbox.load(program.program_text(), name=RETURNS, opt=2, flavour="none")


@contextmanager
def registered(probes: Sequence[kprobes.kprobe | kprobes.kretprobe], optimized: bool) -> Iterator[None]:
    """These probes, as jumps or as breakpoints. Raises AssertionError if one is not what it should be."""
    kprobes.set_kprobes_optimization(int(optimized))
    for probe in probes:
        if isinstance(probe, kprobes.kprobe):
            kprobes.register_kprobe(probe)
        else:
            kprobes.register_kretprobe(probe)
    kprobes.wait_for_kprobe_optimizer()
    try:
        listed = kprobes.kprobes_list()
        if ("[OPTIMIZED]" in listed) != optimized:
            raise AssertionError(f"optimised: {optimized}, but listed are\n{listed}")
        yield
    finally:
        for probe in reversed(probes):
            if isinstance(probe, kprobes.kprobe):
                kprobes.unregister_kprobe(probe)
            else:
                kprobes.unregister_kretprobe(probe)
        kprobes.wait_for_kprobe_optimizer()
        kprobes.set_kprobes_optimization(1)


def kprobe(module: str = "bench-plain", offset: int = 0, post: bool = False) -> kprobes.kprobe:
    """A counting probe on the target; with `post` it cannot be boosted."""
    return kprobes.kprobe(
        symbol_name=f"{module}:work", offset=offset, pre_handler=count, post_handler=nothing if post else None
    )


def kretprobe(module: str = RETURNS, handler: object = returned) -> kprobes.kretprobe:
    """One that counts returns."""
    return kprobes.kretprobe(symbol_name=f"{module}:work", handler=handler, maxactive=20)


Probes = Callable[[], Sequence[kprobes.kprobe | kprobes.kretprobe]]


def _sample(make: Probes, calls: int, optimized: bool, module: Callable[[], Module] = plain) -> Sample:
    run = program.timed_loop(module(), "work", calls)
    baseline = run()
    probes = make()
    with registered(probes, optimized):
        before = counted[0]
        probed = run()
        hits = counted[0] - before
    return Sample(baseline, probed, calls, hits // len(probes), _missed(probes))


def _missed(probes: Sequence[kprobes.kprobe | kprobes.kretprobe]) -> int:
    return sum(probe.nmissed for probe in probes)


def _python(calls: int) -> Sample:
    hits = [0]

    def pre(p: kprobes.kprobe, regs: object) -> int:
        hits[0] += 1
        return 0

    run = program.timed_loop(plain(), "work", calls)
    baseline = run()
    probe = kprobes.kprobe(symbol_name="bench-plain:work", pre_handler=pre)
    with registered([probe], optimized=True):
        probed = run()
    return Sample(baseline, probed, calls, hits[0], probe.nmissed)


def _sample_register(number: int, functions: int) -> Sample:
    """Breakpoints on the instruction behind the stub of so many functions, in one batch; then their end."""
    sites = scale.flat(functions).module.sites[:number]
    probes = [kprobes.kprobe(addr=site + 5, pre_handler=count) for site in sites]
    start = time.perf_counter_ns()
    kprobes.register_kprobes(probes)
    middle = time.perf_counter_ns()
    kprobes.wait_for_kprobe_optimizer()
    optimized = time.perf_counter_ns()
    kprobes.unregister_kprobes(probes)
    kprobes.wait_for_kprobe_optimizer()
    end = time.perf_counter_ns()
    figures = {
        "register_ms": (middle - start) / 1e6,
        "optimize_ms": (optimized - middle) / 1e6,
        "unregister_ms": (end - optimized) / 1e6,
    }
    return Sample(0.0, end - start, 0, 0, extra=figures)


def rows(calls: int, functions: int) -> list[Row]:
    """The rows of this group. Those with a breakpoint make fewer than `calls` calls a sample."""
    few = max(calls // 100, 10)
    number = min(REGISTERED, functions)
    bench = program.program

    def trapped(name: str, about: str, make: Probes, module: Callable[[], Module] = plain) -> Row:
        return Row(name, about, partial(_sample, make, few, False, module), rounds=10)

    def jumped(name: str, about: str, make: Probes, module: Callable[[], Module] = plain) -> Row:
        return Row(name, about, partial(_sample, make, calls, True, module))

    return [
        trapped("kprobe.int3", "breakpoint; the instruction (ret) is emulated", lambda: [kprobe(offset=_TAIL)]),
        trapped("kprobe.boosted", "breakpoint, boosted (b)", lambda: [kprobe()]),
        trapped("kprobe.stepped", "breakpoint, a post_handler: stepped (k)", lambda: [kprobe(post=True)]),
        jumped("kprobe.optimized", "a jump (o)", lambda: [kprobe()]),
        Row("kprobe.ftrace", "on a stub", partial(_sample, lambda: [kprobe("bench")], calls, False, bench)),
        Row("kprobe.python", "a jump, Python pre_handler", partial(_python, few), rounds=10),
        trapped("kretprobe.int3", "return probe on a breakpoint (rb)", lambda: [kretprobe()], returns),
        jumped("kretprobe.optimized", "return probe on a jump (ro)", lambda: [kretprobe()], returns),
        jumped(
            "kretprobe.optimized.regs",
            "... that reads the result",
            lambda: [kretprobe(handler=returned_value)],
            returns,
        ),
        Row(
            "kretprobe.ftrace",
            "return probe on a stub",
            partial(_sample, lambda: [kretprobe("bench")], calls, False, bench),
        ),
        Row(
            "kretprobe.ftrace.regs",
            "... that reads the result",
            partial(_sample, lambda: [kretprobe("bench", returned_value)], calls, False, bench),
        ),
        trapped("kr", "kretprobe and kprobe on one function (kr)", lambda: [kretprobe(), kprobe(RETURNS)], returns),
        jumped("kr.optimized", "... on a jump", lambda: [kretprobe(), kprobe(RETURNS)], returns),
        Row(
            f"kprobe.register.{number}",
            "in one batch: registered, made jumps, unregistered",
            partial(_sample_register, number, functions),
            rounds=3,
        ),
    ]
