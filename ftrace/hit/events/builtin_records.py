"""Write the built-in records: the stack of a hit, also as a histogram's key, or the text for trace_marker. Native."""

from __future__ import annotations

from ftrace.hit.ring_buffer.consuming import swap
from ftrace.hit.ring_buffer.records import Mark, Reservation, RingBuffer
from ftrace.hit.ring_buffer.writer import commit, reserve, write
from ftrace.hit.unwind.walk import MAX_DEPTH, StackPoint, walk_stack
from sandbox.native import *

PRINT = 5
"""The type of print records (TRACE_PRINT)."""
KERNEL_STACK, USER_STACK = 4, 12
"""The types of stack records (TRACE_STACK, TRACE_USER_STACK)."""
TAKE_SNAPSHOT = "tracing_snapshot_instance_cond"
STACKTRACE, USERSTACKTRACE, TASKS = 1, 2, 4
"""Bits of a trace array's word: the options of these names are on; only the events of some threads are recorded."""
STACKS = STACKTRACE | USERSTACKTRACE
FTRACE_TRAMPOLINE_MARKER = (1 << 31) - 1
"""Stands in a stack record for the trampoline that called the tracer."""
_HEAD = 16
_USER_DEPTH = 8
_GETPID = 39


@struct
class StackRecord(Structure):
    """struct stack_entry, where `first` is the number of addresses, and struct userstack_entry, where it is the process's id."""

    common: u64
    first: u32
    padding: u32
    caller: array[u64, 64]


@struct
class StackTarget(Structure):
    """The argument of the trigger `stacktrace`."""

    buffer: ptr[RingBuffer]
    tracing_on: ptr[u64]


@native(noinline=True)
def write_stack(buffer: ptr[RingBuffer], type_id: u64, first: u32, entries: ptr[u64], count: u64) -> void:
    mark: Mark = zeroed
    place: Reservation = zeroed
    if not reserve(buffer, addressof(mark), addressof(place), type_id, _HEAD + count * 8):
        return
    record = cast(ptr[StackRecord], place.event)
    record.first = first
    record.padding = 0
    for index in range(count):
        record.caller[index] = entries[index]
    commit(addressof(mark), addressof(place))


@native(noinline=True)
def record_stack(buffer: ptr[RingBuffer], point: ptr[StackPoint], options: u64) -> void:
    """Record the stack from `point` outwards: ftrace_trace_stack() and ftrace_trace_userstack() in kernel/trace/trace.c."""
    entries: array[u64, 64] = zeroed
    at: StackPoint = zeroed
    copy(addressof(at), point)
    count = walk_stack(addressof(at), addressof(entries[0]), MAX_DEPTH)
    if options & STACKTRACE != 0:
        write_stack(buffer, KERNEL_STACK, cast(u32, count), addressof(entries[0]), count)
    if options & USERSTACKTRACE != 0:
        process = cast(u32, syscall(_GETPID, 0, 0, 0, 0, 0, 0))
        write_stack(buffer, USER_STACK, process, addressof(entries[0]), _USER_DEPTH)


@native(name="event_stacktrace_trigger")
def stacktrace_trigger(argument: u64, record: ptr[u8], length: u64, point: ptr[StackPoint]) -> void:
    """The call of the trigger `stacktrace`."""
    target = cast(ptr[StackTarget], argument)
    if point != null and point.ip != 0 and volatile_load(target.tracing_on) != 0:
        record_stack(target.buffer, point, STACKTRACE)


@struct
class SnapshotTarget(Structure):
    """The argument of what takes a snapshot. `said`: two print records of `said_size` bytes, for a hit without a spare ring."""

    buffer: ptr[RingBuffer]
    tracing_on: ptr[u64]
    said: ptr[u8]
    said_size: u64


@native(name=TAKE_SNAPSHOT)
def take_snapshot(argument: u64, record: ptr[u8], length: u64, point: ptr[StackPoint]) -> void:
    """Take a snapshot. Without a spare ring, which somebody has freed, say so and stop recording, as the kernel does."""
    target = cast(ptr[SnapshotTarget], argument)
    if volatile_load(addressof(target.buffer.spare)) != null:
        swap(target.buffer)
    elif volatile_load(target.tracing_on) != 0:
        write(target.buffer, PRINT, target.said, target.said_size, 0)
        write(target.buffer, PRINT, addressof(target.said[target.said_size]), target.said_size, 0)
        store(target.tracing_on, 0, "release")


@native(name="event_capture_stack")
def capture_stack(argument: u64, to: ptr[u8], size: u64, point: ptr[StackPoint]) -> void:
    """Store as many return addresses as fit in `size` bytes; the rest of the memory is left unchanged."""
    if point != null and point.ip != 0:
        at: StackPoint = zeroed
        copy(addressof(at), point)
        walk_stack(addressof(at), cast(ptr[u64], to), size >> 3)


TRACING_MARK_WRITE = "tracing_mark_write"


@native(name=TRACING_MARK_WRITE)
def tracing_mark_write(buffer: ptr[RingBuffer], data: ptr[u8], size: u64, thread: u32) -> bool_:
    """Record what a program wrote. Its own address is in the record, as that of the function that made it."""
    return write(buffer, PRINT, data, size, thread)


FUNCTIONS = (stacktrace_trigger, take_snapshot, capture_stack)
