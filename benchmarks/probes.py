"""The rows of fprobe: what a hit costs."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from functools import cache, partial
from random import Random
from typing import Any

import fprobe
import sandbox
from benchmarks import handlers, program
from benchmarks.measure import Row, Sample
from fprobe import Attachment, Record, ticks_per_ns
from sandbox import Module

FIB_N = 22
_LAYOUTS = 20

Attach = Callable[[str], Attachment]
"""Makes the attachment of a row to the function of that name."""


def sample_loop(attach: Attach, calls: int, target: str = "work") -> Sample:
    """The loop without and with a probe on its target."""
    run = program.timed_loop(program.program(), target, calls)
    baseline = run()
    with attach(target) as probe:
        probed = run()
        return Sample(baseline, probed, calls, probe.hits, probe.counts.missed)


def both_native(target: Any, **options: Any) -> Attachment:
    """Handlers at both ends that are given ip, ret_ip and the call's data."""
    options.setdefault("nr_maxactive", 1000)
    return fprobe.attach(target, entry=handlers.remember, exit=handlers.compare, entry_data_size=8, **options)


def entry_native(target: Any) -> Attachment:
    """A handler at the entry only."""
    return fprobe.attach(target, entry=handlers.nothing)


def _declined(target: str) -> Attachment:
    return fprobe.attach(target, entry=handlers.decline, exit=handlers.compare, entry_data_size=8)


def _both_regs(target: str) -> Attachment:
    return fprobe.attach(target, entry=handlers.read_argument, exit=handlers.read_result)


def _entry_python(target: str) -> Attachment:
    def entry(fp: object, ip: int, ret_ip: int, regs: object, data: object) -> None:
        pass

    return fprobe.attach(target, entry=entry)


def _both_python(target: str) -> Attachment:
    def entry(fp: object, ip: int, ret_ip: int, regs: object, data: object) -> None:
        pass

    return fprobe.attach(target, entry=entry, exit=entry)


def _recursive(n: int) -> Callable[[], Sample]:
    """fib(n), which makes as many calls as it says itself."""
    calls = _fib_calls(n)

    def sample() -> Sample:
        module = program.program()
        run = program.timed(partial(module["fib"].pointer, n), calls)
        baseline = run()
        with both_native("fib") as probe:
            probed = run()
            return Sample(baseline, probed, calls, probe.hits, probe.counts.missed)

    return sample


def _fib_calls(n: int) -> int:
    fewer, calls = 1, 1
    for _ in range(n - 1):
        fewer, calls = calls, fewer + calls + 1
    return calls


_STATS: dict[str, tuple[str, dict[str, Any]]] = {
    "": ("the action Stat", {}),
    ".durations": ("... with durations", {"durations": True}),
    ".caller": ("... by caller", {"by": "caller"}),
    ".self": ("... with self time", {"self_time": True}),
    ".cpu": ("... with self and CPU time", {"cpu": True}),
}


def _counted(calls: int, options: dict[str, Any]) -> Sample:
    return sample_loop(lambda target: fprobe.attach(target, action=fprobe.Stat(**options)), calls)


def _recorded(calls: int) -> Sample:
    action = Record()
    sample = sample_loop(lambda target: fprobe.attach(target, action=action), calls)
    if action.written != calls:
        raise AssertionError(f"{action.written} records of {calls} calls")
    lost = action.lost
    action.close()
    return Sample(sample.baseline_ns, sample.probed_ns, calls, sample.hits, sample.missed, lost)


def _first_hit() -> Sample:
    """The first call of a thread: it has to get a task first."""
    module = program.program()
    ticks, address = module["ticks"].pointer, module["work"].address

    def taken() -> float:
        return float(ticks(address) / ticks_per_ns())

    baseline = _in_new_thread(taken)
    with both_native("work") as probe:
        probed = _in_new_thread(taken)
        return Sample(baseline, probed, 1, probe.hits, probe.counts.missed)


def _in_new_thread(measure: Callable[[], float]) -> float:
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.append(measure()))
    thread.start()
    thread.join()
    return found[0]


def _threads(calls: int) -> Sample:
    """One thread, then two at the same time, through one fprobe.

    `ratio`: the throughput of two over that of one, by the clock; `cpu_ratio`: by the threads' own CPU time, which does
    not count what other programs took of the machine meanwhile.
    """
    run = program.timed_loop(program.program(), "work", calls)
    with both_native("work") as probe:
        alone, alone_cpu = at_once(run, calls, 1)
        together, together_cpu = at_once(run, calls, 2)
        counts = probe.counts
    ratios = {"ratio": 2 * alone / together, "cpu_ratio": 2 * alone_cpu / together_cpu}
    return Sample(alone, together, 3 * calls, counts.hits, counts.missed, extra=ratios)


def at_once(run: Callable[[], float], calls: int, number: int) -> tuple[float, float]:
    """Nanoseconds per call of threads that start together: by the clock, and of CPU time; means over the threads."""
    barrier = threading.Barrier(number)
    found: list[tuple[float, float]] = []

    def body() -> None:
        barrier.wait()
        start = time.thread_time_ns()
        wall = run()
        found.append((wall, (time.thread_time_ns() - start) / calls))

    threads = [threading.Thread(target=body) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall, cpu = (statistics.fmean(column) for column in zip(*found, strict=True))
    return wall, cpu


class _Layouts:
    """The same function with a stub and without, in programs that are laid out at random."""

    def __init__(self, calls: int) -> None:
        self.calls = calls
        random = Random(1)
        texts = [program.layout_text(random) for _ in range(_LAYOUTS)]
        self.modules = [sandbox.load(text, name=f"layout{i}", opt=2) for i, text in enumerate(texts)]

    def sample(self) -> Sample:
        """The median over the layouts."""
        pairs = [self._pair(module) for module in self.modules]
        plain, added = (statistics.median(column) for column in zip(*pairs, strict=True))
        calls = self.calls * len(pairs)
        return Sample(plain, plain + added, calls, calls)

    def _pair(self, module: Module) -> tuple[float, float]:
        plain = program.timed_loop(module, "plain", self.calls, "loop_plain")
        work = program.timed_loop(module, "work", self.calls, "loop_work")
        times = [(plain(), work()) for _ in range(3)]
        without, with_stub = (min(column) for column in zip(*times, strict=True))
        return without, with_stub - without


@cache
def _layouts(calls: int) -> _Layouts:
    return _Layouts(calls)


def rows(calls: int) -> list[Row]:
    """The rows of this group; the slow ones make fewer than `calls` calls a sample."""
    few = max(calls // 100, 10)
    return [
        Row("nop", "a stub and no probe, over 20 layouts", lambda: _layouts(max(calls // 10, 10)).sample()),
        Row("fprobe.entry.native", "handler at the entry", partial(sample_loop, entry_native, calls)),
        Row("fprobe.both.native", "handlers at both ends: ip, ret_ip, data", partial(sample_loop, both_native, calls)),
        Row("fprobe.declined", "... whose entry handler declines the exit", partial(sample_loop, _declined, calls)),
        Row("fprobe.both.native.regs", "... that read pt_regs", partial(sample_loop, _both_regs, calls)),
        Row("fprobe.both.native.recursive", f"fib({FIB_N})", _recursive(FIB_N if calls > 10_000 else 8)),
        Row("fprobe.entry.python", "a Python callable at the entry", partial(sample_loop, _entry_python, few)),
        Row("fprobe.both.python", "Python callables at both ends", partial(sample_loop, _both_python, few)),
        *(
            Row(f"fprobe.stat{name}", about, partial(_counted, calls, options))
            for name, (about, options) in _STATS.items()
        ),
        Row(
            "fprobe.both.record",
            "two time stamps and a record of the call into the ring buffer",
            partial(_recorded, calls),
        ),
        Row("fprobe.first_hit", "the first hit of a new thread", _first_hit),
        Row("threads.2", "two threads through one fprobe", partial(_threads, calls)),
    ]
