"""The rows of the ring buffer: what it costs to record an event."""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import fprobe
import sandbox
from benchmarks.measure import Row, Sample
from benchmarks.probes import sample_loop
from fprobe.tracefs import tracefs
from ftrace import Buffer, Mark, Probe, Reservation, RingBuffer, commit, pt_regs, reserve
from ftrace.tracing.events.registry import event_registry
from sandbox.native import Structure, addressof, cast, i32, native, ptr, struct, u64, zeroed

TYPE = 1315


@struct
class TwoArguments(Structure):
    """An event as a kprobe event of two arguments records it."""

    common: u64
    ip: u64
    first: u64
    second: u64


@native(cc="preserve_most")
def record_two(fp: ptr[Probe], ip: u64, ret_ip: u64, regs: ptr[pt_regs], data: u64) -> i32:
    """Record where the function is, and its first two arguments."""
    mark: Mark = zeroed
    place: Reservation = zeroed
    if reserve(cast(ptr[RingBuffer], fp.action), addressof(mark), addressof(place), TYPE, 32):
        event = cast(ptr[TwoArguments], place.event)
        event.ip = ip
        event.first = regs.di
        event.second = regs.si
        commit(addressof(mark), addressof(place))
    return 0


def recording(buffer: Buffer, target: str) -> Any:
    """An attachment that records the calls of a function into a buffer."""
    attachment = fprobe.attach(target, entry=record_two)
    attachment.fp.action = buffer.address
    return attachment


def _two_arguments(calls: int) -> Sample:
    buffer = Buffer()
    try:
        sample = sample_loop(partial(recording, buffer), calls)
        held = sum(1 for _ in buffer.records())
        return Sample(sample.baseline_ns, sample.probed_ns, calls, sample.hits, sample.missed, calls - held)
    finally:
        buffer.close()


@contextlib.contextmanager
def _defined(line: str, target: str, *, filter_: str = "0", trigger: str = "") -> Iterator[Any]:
    """The event `b` of a definition, enabled or, with a trigger, counted; its counts as sample_loop asks for them."""
    tracefs.write("dynamic_events", line.format(target), append=True)
    event = event_registry.events()[-1]
    files = f"events/{event.group}/{event.name}"
    tracefs.write(f"{files}/filter", filter_)
    if trigger:
        tracefs.write(f"{files}/trigger", trigger)
    else:
        event.set_enabled(True)
    try:
        probe = event.probes[0]  # type: ignore[attr-defined]  # a probe event
        yield _Counted(probe)
    finally:
        event.set_enabled(False)
        tracefs.write(f"{files}/trigger", "")
        tracefs.write("dynamic_events", f"-:{event.group}/{event.name}", append=True)
        tracefs.write("trace", "")


_LATENCY = {
    "kprobes/enter": "hist:keys=common_pid:ts=common_timestamp",
    "kprobes/leave": "hist:keys=common_pid:d=common_timestamp-$ts:onmatch(kprobes.enter).took($d)",
    "synthetic/took": "hist:keys=ticks.log2",
}
"""Triggers that count how long calls take: the entry's time in a variable, an event for each call, a histogram of that."""


@contextlib.contextmanager
def _latency(target: str) -> Iterator[Any]:
    """The events of _LATENCY on a function; the counts of its return."""
    tracefs.write("dynamic_events", f"p:enter bench:{target}\nr:leave bench:{target}\n", append=True)
    tracefs.write("synthetic_events", "took u64 ticks", append=True)
    for event, trigger in _LATENCY.items():
        tracefs.write(f"events/{event}/trigger", trigger)
    try:
        found = event_registry.find("kprobes", "leave")
        yield _Counted(found.probes[0])  # type: ignore[union-attr]  # a probe event
    finally:
        for event, trigger in reversed(_LATENCY.items()):
            tracefs.write(f"events/{event}/trigger", f"!{trigger}")
        for event in _LATENCY:
            tracefs.write("dynamic_events", f"-:{event}", append=True)


class _Counted:
    """A probe of an event, with the counts of an attachment."""

    def __init__(self, probe: Any) -> None:
        self._probe = probe

    @property
    def hits(self) -> int:
        return int(self._probe.hits)

    @property
    def counts(self) -> Any:
        return SimpleNamespace(missed=self._probe.misses)


def _of(line: str, calls: int, **options: str) -> Sample:
    return sample_loop(partial(_defined, line, **options), calls)


_TEXT = ctypes.create_string_buffer(b"a text of thirty-one characters")


def _string(calls: int) -> Sample:
    """The text is at an address of its own, so that any function will do."""
    return _of(f"p:b bench:{{}} s=@{ctypes.addressof(_TEXT):#x}:string", calls)


class _Definitions:
    """Programs whose functions are defined as events, for the time that definitions take."""

    def __init__(self, number: int) -> None:
        functions = "".join(f"define i64 @d{index}(i64 %x) {{ ret i64 %x }}\n" for index in range(number))
        self._module = sandbox.load(functions, name="defined")

    def milliseconds(self, lines: str) -> float:
        """How long one write takes."""
        started = time.perf_counter()
        tracefs.write("dynamic_events", lines, append=True)
        return (time.perf_counter() - started) * 1000

    def close(self) -> None:
        tracefs.write("dynamic_events", "")
        self._module.unload()


def _define() -> Sample:
    """A definition whose handler is compiled, the same from the cache, and the first one of the process."""
    made = _Definitions(8)
    fresh = time.monotonic_ns() & 0xFFFF_FFFF  # an immediate that no cache has seen
    try:
        first = made.milliseconds("p:first d0 a=%di b=%si:u32\n")
        cold = min(made.milliseconds(f"p:cold{index} d{index} a=%di c=\\{fresh + index}\n") for index in range(1, 4))
        cached = min(made.milliseconds(f"p:cached{index} d{index} a=%di b=%si:u32\n") for index in range(4, 8))
    finally:
        made.close()
    return Sample(0, 0, 8, 8, extra={"first_ms": first, "cold_ms": cold, "cached_ms": cached})


def _define_many() -> Sample:
    """A thousand definitions in one write."""
    made = _Definitions(1000)
    try:
        made.milliseconds("p:one d0 a=%di b=%si:u32\n")
        lines = "".join(f"p:e{index} d{index} a=%di b=%si:u32\n" for index in range(1000))
        took = made.milliseconds(lines)
    finally:
        made.close()
    return Sample(0, 0, 1000, 1000, extra={"write_ms": took})


def rows(calls: int) -> list[Row]:
    """The rows of this module."""
    return [
        Row("event.record.2args", "an event of two integers into the ring buffer", partial(_two_arguments, calls)),
        Row("event.kprobe", "a kprobe event of two arguments", partial(_of, "p:b bench:{} a=$arg1 b=$arg2", calls)),
        Row("event.fprobe", "an fprobe event of two arguments", partial(_of, "f:b {} a=$arg1 b=$arg2", calls)),
        Row("event.kretprobe", "a return event with the result", partial(_of, "r:b bench:{} $retval", calls)),
        Row("event.string", "a kprobe event of a text of 32 bytes", partial(_string, calls)),
        Row(
            "event.filtered.out",
            "a kprobe event that its filter drops",
            partial(_of, "p:b bench:{} a=$arg1", calls, filter_="a == 0x123456789"),
        ),
        Row(
            "event.hist",
            "a histogram of one integer",
            partial(_of, "p:b bench:{} a=$arg1", calls, trigger="hist:keys=a"),
        ),
        Row(
            "event.hist.variable",
            "a histogram with a variable",
            partial(_of, "p:b bench:{} a=$arg1", calls, trigger="hist:keys=a:x=a"),
        ),
        Row("event.hist.onmatch", "a histogram of how long calls take", partial(sample_loop, _latency, calls)),
        Row("event.define", "an event defined: compiled, cached, the first one", _define),
        Row("event.define.1000", "a thousand definitions in one write", _define_many),
    ]
