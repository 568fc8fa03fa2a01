"""The rows of fprobe in situations: several probes, misses, disabled ones, one return node, tail calls, signals, many threads."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from functools import partial

import fprobe
from benchmarks import handlers, program
from benchmarks.measure import Row, Sample
from benchmarks.probes import at_once, both_native, sample_loop
from fprobe import Attachment
from ftrace import ftrace_test_recursion_trylock, ftrace_test_recursion_unlock
from sandbox.threads import contexts

_THREADS = 1000
_STACK = 1 << 16
"""Bytes of stack for each of the threads."""
_REGISTRATIONS = 20


def _both_arguments(target: str) -> Attachment:
    return fprobe.attach(target, entry=handlers.read_two_arguments, exit=handlers.read_result)


def _three(calls: int) -> Sample:
    """Three fprobes on one function, each with handlers at both ends."""
    run = program.timed_loop(program.program(), "work", calls)
    baseline = run()
    with contextlib.ExitStack() as stack:
        attached = [stack.enter_context(both_native("work")) for _ in range(3)]
        probed = run()
        hits, missed = (sum(getattr(probe.counts, name) for probe in attached) for name in ("hits", "missed"))
        return Sample(baseline, probed, 3 * calls, hits, missed)


@contextlib.contextmanager
def _both_levels_taken() -> Iterator[None]:
    """In this thread and context every hit is one level too deep (FT-52)."""
    bits = [ftrace_test_recursion_trylock() for _ in range(2)]
    try:
        yield
    finally:
        for bit in reversed(bits):
            ftrace_test_recursion_unlock(bit)


def _missed(calls: int) -> Sample:
    run = program.timed_loop(program.program(), "work", calls)
    baseline = run()
    with both_native("work") as probe, _both_levels_taken():
        probed = run()
        return Sample(baseline, probed, calls, probe.hits, probe.counts.missed)


def _disabled(calls: int) -> Sample:
    """No hits and no misses: FP-41 counts neither."""
    run = program.timed_loop(program.program(), "work", calls)
    baseline = run()
    with both_native("work", disabled=True) as probe:
        probed = run()
        return Sample(baseline, probed, 0, probe.hits, probe.counts.missed)


def _one_node(calls: int, threads: int) -> Sample:
    """Each call is a hit, at its entry; those that found no node for the exit are told apart."""
    run = program.timed_loop(program.program(), "work", calls)
    baseline = run()
    native = {"entry": handlers.remember_if_hooked, "exit": handlers.compare, "entry_data_size": 8}
    with fprobe.attach("work", nr_maxactive=1, **native) as probe:
        probed, _ = at_once(run, calls, threads)
        counts = probe.counts
    missed = counts.missed - counts.missed_nodes
    return Sample(baseline, probed, threads * calls, counts.hits, missed, extra={"without_node": counts.missed_nodes})


def _tail(calls: int) -> Sample:
    """Two hooked calls with one frame."""
    run = program.timed_loop(program.program(), "tail", calls)
    baseline = run()
    module = program.program()
    with both_native([module["tail"].address, module["work"].address]) as probe:
        probed = run()
        return Sample(baseline, probed, 2 * calls, probe.hits, probe.counts.missed)


def _in_signal(calls: int) -> Sample:
    """The loop inside the handler of a signal, in irq context."""
    module = program.program()
    arguments = (calls, module["work"].address)
    run = program.timed(partial(contexts.call_in, "irq", module["loop"].address, arguments), calls)
    with both_native("work", disabled=True):
        pass  # contexts are there from now on
    baseline = run()
    with both_native("work") as probe:
        probed = run()
        return Sample(baseline, probed, calls, probe.hits, probe.counts.missed)


@contextlib.contextmanager
def _threads_alive(number: int) -> Iterator[None]:
    """That many threads, each of which has called `work` once, and waits."""
    work, go_on = program.program()["work"].pointer, threading.Event()
    together = threading.Barrier(number + 1)

    def body() -> None:
        work(1)
        together.wait()
        go_on.wait()

    before = threading.stack_size(_STACK)
    started = [threading.Thread(target=body, daemon=True) for _ in range(number)]
    try:
        for thread in started:
            thread.start()
        together.wait()
        yield
    finally:
        threading.stack_size(before)
        go_on.set()
        for thread in started:
            thread.join()


def _registered_among(number: int) -> Sample:
    """One registration and its end, the median of some. `alone_ms`: both together, without those threads."""
    program.program()
    alone = _registrations()
    with both_native("work") as probe:
        with _threads_alive(number):
            register, unregister = _registrations()
        hits, missed = probe.hits, probe.counts.missed
    extra = {"register_ms": register / 1e6, "unregister_ms": unregister / 1e6, "alone_ms": sum(alone) / 1e6}
    return Sample(0.0, register + unregister, number, hits, missed, extra=extra)


def _registrations() -> tuple[float, float]:
    """Nanoseconds of a registration of one function, and of its end."""
    taken = []
    for _ in range(_REGISTRATIONS):
        probe = both_native("tail")
        start = time.perf_counter_ns()
        probe.attach()
        between = time.perf_counter_ns()
        probe.detach()
        taken.append((between - start, time.perf_counter_ns() - between))
    register, unregister = (sorted(column)[len(column) // 2] for column in zip(*taken, strict=True))
    return register, unregister


def rows(calls: int) -> list[Row]:
    """The rows of this group."""
    threads = _THREADS if calls > 10_000 else 20
    maxactive1 = "fprobe.both.native.maxactive1"
    return [
        Row(
            "fprobe.both.native.args",
            "... that read two arguments and the result",
            partial(sample_loop, _both_arguments, calls),
        ),
        Row("fprobe.x3.native", "three fprobes on one function", partial(_three, calls)),
        Row("fprobe.miss", "a hit that recurses too deep", partial(_missed, calls)),
        Row("fprobe.disabled", "soft-disabled", partial(_disabled, calls)),
        Row(maxactive1, "one return node", partial(_one_node, calls, 1)),
        Row(f"{maxactive1}.threads2", "... for two threads", partial(_one_node, calls, 2)),
        Row("fprobe.tail", "a hooked function that tail-calls another", partial(_tail, calls)),
        Row("fprobe.in_signal", "in the handler of a signal", partial(_in_signal, calls)),
        Row(
            f"register.{threads}threads",
            "one function, among that many threads",
            partial(_registered_among, threads),
            rounds=3,
        ),
    ]
