"""trace_marker and trace_marker_raw: records of text and of bytes that programs write."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import struct
import threading
from collections.abc import Iterator

from ftrace.core.runtime import runtime
from ftrace.hit.events.builtin_records import TRACING_MARK_WRITE
from ftrace.tracing.events.builtin import PRINT, RAW_DATA
from ftrace.tracing.instances.as_task import current_task, recording_task
from ftrace.tracing.instances.trace_array import TraceArray

_IP_SIZE = 8
_END = b"\n\0"
_COMMON = 8
_ID = struct.Struct("<I")
_HEAD = 12
_LEAST = 13
"""The minimum size of a raw record in bytes, as in tracing_mark_raw_write()."""
_LONGEST = 4096
"""How much text one write takes at most, however large the sub-buffers are: TRACE_MARKER_MAX_SIZE."""


def write_marker(array: TraceArray, data: bytes) -> int:
    """Record text, at most 4096 bytes that fit a sub-buffer. Returns how many were taken. Raises OSError: EINVAL, EBADF."""
    _check(array)
    taken = data[: min(array.buffer.longest - _IP_SIZE - len(_END), _LONGEST)]
    end = b"\0" if taken.endswith(b"\n") else _END
    with _triggers_act(array, taken):
        _record(array, _ip() + taken + end)
    return len(taken)


def _record(array: TraceArray, data: bytes) -> None:
    copy = ctypes.create_string_buffer(data, len(data))
    runtime().image.call(TRACING_MARK_WRITE, array.buffer.address, ctypes.addressof(copy), len(data), recording_task())


def _ip() -> bytes:
    """The address in a print record: of the function that makes it."""
    return runtime().image.address(TRACING_MARK_WRITE).to_bytes(_IP_SIZE, "little")


@contextlib.contextmanager
def _triggers_act(array: TraceArray, text: bytes) -> Iterator[None]:
    """Run the triggers of ftrace/print: before the record is written, on the given text, and after it."""
    triggers = PRINT.file_in(array).triggers
    if not triggers:
        yield
        return
    common = PRINT.id | (current_task() or threading.get_native_id()) << 32
    record = common.to_bytes(_COMMON, "little") + _ip() + text + b"\0"
    post = triggers.run(record, is_reserved=True)
    yield
    triggers.run_post(post, record)


def write_raw_marker(array: TraceArray, data: bytes) -> int:
    """Record a 32-bit id and bytes. Raises OSError: EINVAL (no id, or more than fits a sub-buffer), EBADF."""
    _check_option(array)
    if len(data) < _ID.size:
        raise OSError(
            errno.EINVAL, f"{len(data)} bytes were written; a raw marker must begin with an id of {_ID.size} bytes"
        )
    size = -(-(_HEAD + max(len(data), _LEAST)) // 4) * 4 - _HEAD + _ID.size
    if size > array.buffer.longest:
        raise OSError(
            errno.EINVAL, f"{len(data)} bytes were written; {array.buffer.longest - _ID.size} fit a sub-buffer"
        )
    _check(array)
    array.buffer.write(RAW_DATA.id, data.ljust(size, b"\0"), recording_task())
    return len(data)


def _check_option(array: TraceArray) -> None:
    if not array.options["markers"]:
        raise OSError(errno.EINVAL, "the option markers is off; write markers to trace_options")


def _check(array: TraceArray) -> None:
    _check_option(array)
    if not array.tracing_on:
        raise OSError(errno.EBADF, "tracing_on is 0; write 1 to it")
    if array.dropped_slots.has_this_thread():
        raise OSError(errno.EBADF, "tracing_cpumask leaves out the slot of this thread; write a mask with its bit")
