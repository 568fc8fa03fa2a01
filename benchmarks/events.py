"""The rows of the ring buffer: what it costs to record an event."""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import fprobe
from benchmarks.measure import Row, Sample
from benchmarks.probes import sample_loop
from fprobe.tracefs import tracefs
from ftrace.events.registry import event_registry
from ftrace.events.trace_array import global_trace
from ftrace.hit.records import Probe
from ftrace.ring_buffer.buffer import Buffer
from ftrace.ring_buffer.records import Mark, RingBuffer
from ftrace.ring_buffer.writer import commit, reserve
from ftrace.x86_64.pt_regs import pt_regs
from sandbox.native import Structure, addressof, cast, i32, native, null, ptr, struct, u64, zeroed

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
    entry = reserve(cast(ptr[RingBuffer], fp.action), addressof(mark), TYPE, 32)
    if entry != null:
        event = cast(ptr[TwoArguments], entry)
        event.ip = ip
        event.first = regs.di
        event.second = regs.si
        commit(addressof(mark))
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
def _defined(line: str, target: str) -> Iterator[Any]:
    """The event `b` of a definition, enabled; its counts as sample_loop asks for them."""
    tracefs.write("dynamic_events", line.format(target), append=True)
    event = event_registry.events()[-1]
    event.set_enabled(True)
    try:
        probe = event.probes[0]  # type: ignore[attr-defined]
        yield _Counted(probe)
    finally:
        event.set_enabled(False)
        tracefs.write("dynamic_events", f"-:{event.group}/{event.name}", append=True)
        global_trace().buffer.clear()


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


def _of(line: str, calls: int) -> Sample:
    return sample_loop(partial(_defined, line), calls)


def rows(calls: int) -> list[Row]:
    """The rows of this module."""
    return [
        Row("event.record.2args", "an event of two integers into the ring buffer", partial(_two_arguments, calls)),
        Row("event.kprobe", "a kprobe event of two arguments", partial(_of, "p:b bench:{} a=$arg1 b=$arg2", calls)),
        Row("event.fprobe", "an fprobe event of two arguments", partial(_of, "f:b {} a=$arg1 b=$arg2", calls)),
        Row(
            "event.kretprobe", "a return event with an argument", partial(_of, "r:b bench:{} a=$arg1 r=$retval", calls)
        ),
    ]
