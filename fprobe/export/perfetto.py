"""Traces for ui.perfetto.dev and trace_processor: Perfetto's protobuf, by the package `perfetto`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sandbox.process.printable import utf8

_SEQUENCE = 1
_FURTHER = 1 << 63
"""In the uuids of tracks that are none of threads or processes."""
_MONOTONIC = 3
"""perfetto.protos.BuiltinClock.BUILTIN_CLOCK_MONOTONIC"""
MISSING = (
    "the format perfetto needs the package perfetto, which cannot be imported ({error}): pip install 'fprobe[targets]'"
)


def check_installed() -> None:
    """Raise ModuleNotFoundError, with what to do, if the package cannot be imported."""
    try:
        import perfetto.trace_builder.proto_builder  # noqa: F401  # only whether it can be imported
    except ImportError as error:
        raise ModuleNotFoundError(MISSING.format(error=error)) from None


class PerfettoTrace:
    """A trace with a track for each thread, and more where its calls are not inside each other. Times are nanoseconds of
    CLOCK_MONOTONIC; those of a thread must not decrease.

    Raises ModuleNotFoundError if the package `perfetto` is not installed.
    """

    def __init__(self) -> None:
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent
        from perfetto.trace_builder.proto_builder import TraceProtoBuilder

        self._builder: Any = TraceProtoBuilder()
        self._kinds: Any = TrackEvent
        self._described: set[tuple[int, int]] = set()
        self._others: dict[tuple[int, int, int], int] = {}
        """The uuids of the further tracks of threads."""

    def process(self, pid: int, name: str) -> None:
        """Describe a process, before its threads."""
        descriptor = self._builder.add_packet().track_descriptor
        descriptor.uuid = _track(pid)
        descriptor.process.pid = pid
        descriptor.process.process_name = utf8(name)

    def thread(self, pid: int, tid: int, name: str = "") -> None:
        """Describe a thread, unless that was done."""
        if (pid, tid) in self._described:
            return
        self._described.add((pid, tid))
        descriptor = self._builder.add_packet().track_descriptor
        descriptor.uuid, descriptor.parent_uuid = _track(pid, tid), _track(pid)
        descriptor.thread.pid, descriptor.thread.tid = pid, tid
        if name:
            descriptor.thread.thread_name = utf8(name)

    def begin(
        self, time: int, pid: int, tid: int, number: int, name: str, values: Mapping[str, Any] | None = None
    ) -> None:
        """A call begins on the track of that number of a thread."""
        self._event(self._kinds.TYPE_SLICE_BEGIN, time, self._track_of(pid, tid, number), name, values or {})

    def end(self, time: int, pid: int, tid: int, number: int, values: Mapping[str, Any] | None = None) -> None:
        """The innermost call of the track ends."""
        self._event(self._kinds.TYPE_SLICE_END, time, self._track_of(pid, tid, number), "", values or {})

    def instant(self, time: int, pid: int, tid: int, name: str, values: Mapping[str, Any]) -> None:
        """Something that has no duration."""
        self._event(self._kinds.TYPE_INSTANT, time, _track(pid, tid), name, values)

    def serialize(self) -> bytes:
        """The content of the file."""
        return bytes(self._builder.serialize())

    def _track_of(self, pid: int, tid: int, number: int) -> int:
        if number == 0:
            return _track(pid, tid)
        key = pid, tid, number
        if key not in self._others:
            self._others[key] = _FURTHER | len(self._others)
            descriptor = self._builder.add_packet().track_descriptor
            descriptor.uuid, descriptor.parent_uuid = self._others[key], _track(pid, tid)
            descriptor.name = f"other stacks, {number}"
        return self._others[key]

    def _event(self, kind: int, time: int, track: int, name: str, values: Mapping[str, Any]) -> None:
        packet = self._builder.add_packet()
        packet.timestamp, packet.timestamp_clock_id = time, _MONOTONIC
        packet.trusted_packet_sequence_id = _SEQUENCE
        event = packet.track_event
        event.type, event.track_uuid = kind, track
        if name:
            event.name = utf8(name)
        for key, value in values.items():
            _annotate(event.debug_annotations.add(), key, value)


def _annotate(annotation: Any, name: str, value: Any) -> None:
    annotation.name = name
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 64:
        if value < 0:
            annotation.int_value = value
        else:
            annotation.uint_value = value
    else:
        annotation.string_value = utf8(str(value))


def _track(pid: int, tid: int = 0) -> int:
    """The uuid of the track of a process, or of one of its threads."""
    return pid << 32 | tid
