"""What the rows have to reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.measure import Result

Results = Mapping[str, Result]


@dataclass(frozen=True)
class Bar:
    """A limit for a figure of one row. `figure` and `limit` raise KeyError if a row they need was not measured."""

    row: str
    text: str
    figure: Callable[[Results], float]
    limit: Callable[[Results], float]
    at_least: bool = False

    def judge(self, results: Results) -> str:
        """`holds`, `FAILS` or `-` with the figure and the limit."""
        try:
            figure, limit = self.figure(results), self.limit(results)
        except KeyError:
            return f"- ({self.text})"
        kept = figure >= limit if self.at_least else figure <= limit
        sign = ">=" if self.at_least else "<="
        return f"{'holds' if kept else 'FAILS'}: {figure:.2f} {sign} {limit:.2f} ({self.text})"


def _added(row: str, factor: float = 1.0) -> Callable[[Results], float]:
    return lambda results: factor * results[row].added_ns


def _extra(row: str, key: str) -> Callable[[Results], float]:
    return lambda results: results[row].extra[key]


def _just(value: float) -> Callable[[Results], float]:
    return lambda _results: value


def _times(row: str, reference: str, factor: float, text: str) -> Bar:
    return Bar(row, text, _added(row), _added(reference, factor))


def _milliseconds(row: str, key: str, limit: float) -> Bar:
    return Bar(row, f"{key} in ms", _extra(row, f"{key}_ms"), _just(limit))


BARS = (
    Bar("library.both.native", "ns added", _added("library.both.native"), _just(12)),
    _times("library.both.native", "library.frida", 1 / 15, "a fifteenth of library.frida"),
    _times("allocation.fprobe.5", "allocation.memray.5", 1 / 2, "half of allocation.memray.5"),
    _times("allocation.fprobe.50", "allocation.memray.50", 1 / 2, "half of allocation.memray.50"),
    _milliseconds("attach.library", "first", 1500),
    _milliseconds("attach.library", "again", 300),
    Bar("tracefs.mount.read", "us", _extra("tracefs.mount.read", "us"), _just(80)),
    _milliseconds("tracefs.mount.request.computing", "p99", 8),
    Bar("tracefs.mount.trace", "times as long as in the process", _extra("tracefs.mount.trace", "ratio"), _just(1.3)),
    Bar("tracefs.mount.list", "seconds", _extra("tracefs.mount.list", "seconds"), _just(3)),
    Bar("tracefs.mount.define", "seconds", _extra("tracefs.mount.define", "seconds"), _just(1)),
    Bar("records.report", "times trace-cmd's time", _extra("records.report", "ratio"), _just(4)),
    _milliseconds("records.trace", "first", 100),
    Bar("records.lookup", "times as long as with one event", _extra("records.lookup", "ratio"), _just(1.5)),
    Bar("records.columns", "lost of 100", _extra("records.columns", "lost_of_100"), _just(0)),
    Bar("records.columns", "MB", _extra("records.columns", "memory_mb"), _just(200)),
    Bar("nop", "ns added by a stub", _added("nop"), _just(0.3)),
    _times("fprobe.entry.native", "ref.call_inc", 3, "3x ref.call_inc"),
    _times("fprobe.both.native", "ref.swap", 0.5, "half of ref.swap"),
    Bar("fprobe.both.native", "ns", _added("fprobe.both.native"), _just(5.5)),
    Bar(
        "fprobe.declined",
        "2 ns over fprobe.entry.native",
        _added("fprobe.declined"),
        lambda results: results["fprobe.entry.native"].added_ns + 2,
    ),
    _times("fprobe.both.native.regs", "ref.swap", 9 / 12.5, "0.72x ref.swap"),
    _times("fprobe.x3.native", "fprobe.both.native", 3, "3x fprobe.both.native"),
    _times("fprobe.both.record", "ref.rdtsc2", 1.45, "1.45x ref.rdtsc2"),
    _times("event.record.2args", "ref.rdtsc2", 1.2, "1.2x ref.rdtsc2"),
    _times("tracer.function", "ref.rdtsc2", 1.2, "1.2x ref.rdtsc2"),
    _times("tracer.function_graph", "ref.rdtsc2", 2.0, "2x ref.rdtsc2"),
    _times("event.kretprobe", "ref.rdtsc2", 1.7, "1.7x ref.rdtsc2"),
    _times("event.string", "ref.rdtsc2", 1.8, "1.8x ref.rdtsc2"),
    Bar(
        "event.filtered.out",
        "3 ns over fprobe.entry.native",
        _added("event.filtered.out"),
        lambda results: results["fprobe.entry.native"].added_ns + 3,
    ),
    Bar("event.hist", "ns", _added("event.hist"), _just(12)),
    _milliseconds("event.define", "cold", 40),
    _milliseconds("event.define", "cached", 4),
    _milliseconds("event.define.1000", "write", 1000),
    Bar(
        "events.sustained",
        "million events a second",
        _extra("events.sustained", "million_per_s"),
        _just(20),
        at_least=True,
    ),
    _times("fprobe.entry.python", "ref.ctypes2", 1.8 / 2, "1.8x half of ref.ctypes2"),
    _times("fprobe.both.python", "ref.ctypes2", 1.8, "1.8x ref.ctypes2"),
    _times("kprobe.python", "ref.ctypes2", 1.9 / 2, "1.9x half of ref.ctypes2"),
    *(_milliseconds(f"attach.50000{kind}", "register", 30) for kind in ("", ".entry", ".first")),
    *(_milliseconds(f"attach.50000{kind}", "unregister", 20) for kind in ("", ".entry", ".first")),
    Bar("threads.2", "two threads over one", _extra("threads.2", "ratio"), _just(1.8), at_least=True),
    Bar("handler.native_vs_c", "native over C", _extra("handler.native_vs_c", "ratio"), _just(1.1)),
    Bar("handler.compile", "later_ms", _extra("handler.compile", "later_ms"), _just(60)),
    Bar("handler.compile", "first_ms", _extra("handler.compile", "first_ms"), _just(60)),
    Bar("handler.cached", "later_ms", _extra("handler.cached", "later_ms"), _just(5)),
    Bar("run.start", "added_ms", _extra("run.start", "added_ms"), _just(120)),
    Bar("run.start.probed", "added_ms", _extra("run.start.probed", "added_ms"), _just(250)),
    Bar("run.start.native", "added_ms", _extra("run.start.native", "added_ms"), _just(400)),
    Bar("runtime.start", "start_ms", _extra("runtime.start", "start_ms"), _just(80)),
    _times("kprobe.int3", "ref.int3", 1.25, "1.25x ref.int3"),
    _times("kprobe.boosted", "ref.int3", 1.25, "1.25x ref.int3"),
    _times("kprobe.stepped", "ref.int3", 2.2, "2.2x ref.int3"),
    Bar("kprobe.optimized", "ns", _added("kprobe.optimized"), _just(10)),
    Bar("kretprobe.optimized", "ns", _added("kretprobe.optimized"), _just(15)),
    _times("kr", "kretprobe.int3", 1.15, "1.15x kretprobe.int3"),
    _times("fprobe.both.native.among50000", "fprobe.both.native", 1.1, "1.1x fprobe.both.native"),
)
"""The bars, several for some rows."""


def judge(row: str, results: Results) -> list[str]:
    """What is to be said of a row: one sentence for each of its bars."""
    return [bar.judge(results) for bar in BARS if bar.row == row]
