"""Recorded calls as a Perfetto trace for ui.perfetto.dev, with a track for each thread of each process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from fprobe.run.events import CallEvents, calls
from fprobe.run.names import Names

_SEQUENCE = 1
_MONOTONIC = 3
"""perfetto.protos.BuiltinClock.BUILTIN_CLOCK_MONOTONIC"""


class Recorded(NamedTuple):
    """A process and its recorded events."""

    pid: int
    command: Sequence[str]
    names: Names
    call_events: CallEvents


def trace(recorded: Sequence[Recorded], first: tuple[int, int], rate: float) -> bytes:
    """The trace. `first`: ticks, and CLOCK_MONOTONIC in nanoseconds at the same moment; `rate`: ticks per nanosecond.

    Raises ModuleNotFoundError if the package `perfetto` is not installed.
    """
    from perfetto.trace_builder.proto_builder import TraceProtoBuilder

    builder = TraceProtoBuilder()
    for process in recorded:
        _describe_process(builder, process)
        threads = sorted({event.thread for event in process.call_events.events})
        for thread in threads:
            _describe_thread(builder, process.pid, thread)
        for call, begins in calls(process.call_events.events):
            ticks = call.entered if begins else call.left or 0
            time = first[1] + round((ticks - first[0]) / rate)
            _slice(builder, time, _track(process.pid, call.thread), str(process.names.function(call.ip)), begins)
    return bytes(builder.serialize())


def _describe_process(builder: Any, process: Recorded) -> None:
    descriptor = builder.add_packet().track_descriptor
    descriptor.uuid = _track(process.pid)
    descriptor.process.pid = process.pid
    descriptor.process.process_name = " ".join(process.command)


def _describe_thread(builder: Any, pid: int, thread: int) -> None:
    descriptor = builder.add_packet().track_descriptor
    descriptor.uuid, descriptor.parent_uuid = _track(pid, thread), _track(pid)
    descriptor.thread.pid, descriptor.thread.tid = pid, thread


def _slice(builder: Any, time: int, track: int, name: str, begins: bool) -> None:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent

    packet = builder.add_packet()
    packet.timestamp, packet.timestamp_clock_id = time, _MONOTONIC
    packet.trusted_packet_sequence_id = _SEQUENCE
    event = packet.track_event
    event.type = TrackEvent.TYPE_SLICE_BEGIN if begins else TrackEvent.TYPE_SLICE_END
    event.track_uuid = track
    if begins:
        event.name = name


def _track(pid: int, thread: int = 0) -> int:
    """The uuid of the track of a process, or of one of its threads."""
    return pid << 32 | thread
