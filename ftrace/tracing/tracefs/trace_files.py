"""The files that each trace array has: at the top level and in each directory of instances/."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping

from ftrace.core.filters.function_probes import clear_ftrace_function_probes
from ftrace.ring_buffer.arena import Cpu, Slots
from ftrace.tracing.events.registry import forget_array
from ftrace.tracing.files.nodes import (
    Directory,
    Handle,
    HeldDirectory,
    LinesFile,
    LinesHandle,
    Node,
    TextFile,
    TextHandle,
    written_number,
    written_switch,
)
from ftrace.tracing.instances.trace_array import TraceArray, new_instance, trace_types_lock
from ftrace.tracing.output.markers import write_marker, write_raw_marker
from ftrace.tracing.output.pipe import PipeFile, RawPipeFile
from ftrace.tracing.output.trace import slots_in_use, snapshot_lines, trace_lines
from ftrace.tracing.tracefs import buffer_files
from ftrace.tracing.tracefs.event_files import SetEventFile, events_directory
from ftrace.tracing.tracefs.tracer_files import tracer_files
from ftrace.tracing.tracers.available import find_tracer, tracers


def trace_array_files(array: TraceArray) -> dict[str, Node]:
    """The files of a trace array, by name."""
    return {
        "available_tracers": TextFile(lambda: " ".join(tracer.name for tracer in tracers) + "\n"),
        "current_tracer": TextFile(lambda: f"{array.tracer.name}\n", lambda text: _choose_tracer(array, text)),
        "error_log": TextFile(array.error_log.read, _ignored, array.error_log.clear),
        "events": events_directory(array),
        "free_buffer": FreeBufferFile(array),
        "options": Directory({name: _option_file(array, name) for name in array.options}),
        "per_cpu": PerCpuDirectory(array),
        "set_event": SetEventFile(array),
        "snapshot": LinesFile(lambda: snapshot_lines(array), lambda text: _write_snapshot(array, text)),
        "trace": TraceFile(array),
        "trace_marker": MarkerFile(array, write_marker),
        "trace_marker_raw": MarkerFile(array, write_raw_marker),
        "trace_options": TextFile(array.options.read, array.options.write),
        "trace_pipe": PipeFile(array),
        "tracing_max_latency": TextFile(
            lambda: f"{array.max_latency_us}\n", lambda text: _set_max_latency(array, text)
        ),
        "tracing_on": TextFile(
            lambda: f"{int(array.tracing_on)}\n", lambda text: setattr(array, "tracing_on", bool(written_number(text)))
        ),
        **buffer_files.settings(array),
        **tracer_files(array),
    }


class PerCpuDirectory(Directory):
    """per_cpu: a directory for each slot, or for each CPU of the machine."""

    def __init__(self, array: TraceArray) -> None:
        super().__init__(lambda: {f"cpu{slot}": _slot_directory(array, slot) for slot in range(slots_in_use())})
        cpus = os.cpu_count() or 1
        self.of_cpus = Directory(
            lambda: {f"cpu{number}": _slot_directory(array, Cpu(number, cpus)) for number in range(cpus)}
        )


def _slot_directory(array: TraceArray, slot: int | Cpu) -> Directory:
    files: Mapping[str, Node] = {
        "buffer_size_kb": buffer_files.slot_size_file(array, slot),
        "snapshot": LinesFile(
            lambda: snapshot_lines(array, slot), lambda text: _write_slot_snapshot(array, slot, text)
        ),
        "snapshot_raw": RawPipeFile(array, slot, snapshot=True),
        "stats": TextFile(lambda: buffer_files.stats_text(array, slot)),
        "trace": TraceFile(array, slot),
        "trace_pipe": PipeFile(array, slot),
        "trace_pipe_raw": RawPipeFile(array, slot),
    }
    return Directory(files)


class TraceFile(Node):
    """trace, of a trace array or of one of its slots. O_TRUNC clears the buffer; writes have no effect."""

    def __init__(self, array: TraceArray, slot: Slots = None) -> None:
        self._array, self._slot = array, slot

    def open(self, flags: int) -> Handle:
        """Open the file."""
        writes = flags & os.O_ACCMODE != os.O_RDONLY
        if writes and flags & os.O_TRUNC:
            self._clear()
        return _TraceHandle(self._array, self._slot, pauses=flags & os.O_ACCMODE != os.O_WRONLY)

    def _clear(self) -> None:
        if self._slot is None:
            self._array.clear()
        else:
            self._array.buffer.clear_slot(self._slot)


def _ignored(_text: str) -> None:
    """Do nothing: writes to trace and error_log have no effect, only O_TRUNC has."""


class _TraceHandle(LinesHandle):
    """An open file trace. With the option pause-on-trace, recording pauses while it is open for reading."""

    def __init__(self, array: TraceArray, slot: Slots, *, pauses: bool) -> None:
        super().__init__(lambda: trace_lines(array, slot), _ignored)
        self._array = array
        self._paused = pauses and array.options["pause-on-trace"] and array.buffer.tracing_on
        if self._paused:
            array.buffer.tracing_on = False

    def close(self) -> None:
        """Resume recording if opening has paused it."""
        if self._paused:
            self._paused, self._array.buffer.tracing_on = False, True


class FreeBufferFile(Node):
    """free_buffer: closing it shrinks the buffer to two sub-buffers; with the option disable_on_free it also stops recording."""

    mode = 0o200

    def __init__(self, array: TraceArray) -> None:
        self._array = array

    def open(self, flags: int) -> Handle:
        """Open the file."""
        return _FreeBufferHandle(self._array)


class _FreeBufferHandle(TextHandle):
    def __init__(self, array: TraceArray) -> None:
        super().__init__(None, _ignored)
        self._array, self._is_open = array, True

    def close(self) -> None:
        """Free all but the newest two sub-buffers of each slot, as tracing_free_buffer_release() in kernel/trace/trace.c."""
        if self._is_open:
            self._is_open = False
            if self._array.options["disable_on_free"]:
                self._array.tracing_on = False
            self._array.buffer.size_kb = 1
            self._array.is_expanded = True


class MarkerFile(Node):
    """trace_marker or trace_marker_raw: each write makes a record."""

    mode = 0o220

    def __init__(self, array: TraceArray, write: Callable[[TraceArray, bytes], int]) -> None:
        self._array, self._write = array, write

    def open(self, flags: int) -> Handle:
        """Open the file."""
        return _MarkerHandle(self._array, self._write)


class _MarkerHandle(Handle):
    def __init__(self, array: TraceArray, write: Callable[[TraceArray, bytes], int]) -> None:
        self._array, self._write = array, write

    def write(self, data: bytes) -> int:
        """Record the data, and return how many bytes were recorded. Raises OSError: EINVAL, EBADF."""
        return self._write(self._array, data)


def _choose_tracer(array: TraceArray, text: str) -> None:
    array.is_expanded = True
    array.use_tracer(find_tracer(text.strip()))


def _set_max_latency(array: TraceArray, text: str) -> None:
    array.max_latency_us = written_number(text)


def _option_file(array: TraceArray, name: str) -> TextFile:
    options = array.options

    def write(text: str) -> None:
        if (on := written_switch(text)) != options[name]:
            options.set(name, on)

    return TextFile(lambda: f"{int(options[name])}\n", write)


def _write_snapshot(array: TraceArray, text: str) -> None:
    array.is_expanded = True
    command = written_number(text)
    array.check_snapshot()
    buffer = array.buffer
    (buffer.free_snapshot, buffer.snapshot, buffer.clear_snapshot)[min(command, 2)]()


def _write_slot_snapshot(array: TraceArray, slot: int | Cpu, text: str) -> None:
    array.is_expanded = True
    command = written_number(text)
    array.check_snapshot()
    if command < 2:
        raise OSError(errno.EINVAL, "a snapshot covers all slots; write to the file snapshot above per_cpu")
    array.buffer.clear_snapshot(slot)


class InstanceDirectory(HeldDirectory):
    """The directory of one instance, with its files."""

    def __init__(self, array: TraceArray) -> None:
        super().__init__(trace_array_files(array))
        self.array = array


class InstancesDirectory(Directory):
    def __init__(self) -> None:
        self._instances: dict[str, InstanceDirectory] = {}
        super().__init__(self._listed)

    def _listed(self) -> Mapping[str, Node]:
        return dict(self._instances)

    def make(self, name: str) -> None:
        """Create an instance. Raises OSError: EEXIST if the name is taken, ENOMEM if there are too many."""
        with trace_types_lock:
            if name in self._instances:
                raise OSError(errno.EEXIST, f"instance {name!r} already exists; choose another name")
            self._instances[name] = InstanceDirectory(new_instance(name))

    def remove(self, name: str) -> None:
        """Remove an instance and all that it contains. Raises OSError: ENOENT, EBUSY while one of its files is open."""
        with trace_types_lock:
            found = self._instances.get(name)
            if found is None:
                raise OSError(errno.ENOENT, f"instance {name!r} does not exist; instances/ lists the instances")
            found.retire()
            del self._instances[name]
        clear_ftrace_function_probes(found.array)
        forget_array(found.array)
        found.array.close()
