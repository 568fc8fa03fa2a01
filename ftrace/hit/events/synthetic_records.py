"""Generate synthetic events: make their records, and record them in every trace array that wants them. Native."""

from __future__ import annotations

from ftrace.hit.events.event_state import EventState, begin_judged_record, record_judged, release, scratch_of
from ftrace.hit.events.operations import Value, put_text
from ftrace.hit.unwind.walk import StackPoint
from sandbox.native import *
from sandbox.threads.tasks import current

MAX_FIELDS = 64
NUMBER, TEXT, DYNAMIC_TEXT, DYNAMIC_STACK = range(4)
"""Kinds of fields. A dynamic one is a word: the place of its bytes after the fields, and their length."""


@struct
class SyntheticField(Structure):
    """A field of the record. `extent`: bytes of a number; of a text, with its final 0."""

    kind: u64
    offset: u64
    extent: u64


@struct
class SyntheticRecord(Structure):
    """A synthetic event, as actions of histograms use it. `fixed`: bytes of the record before what is dynamic."""

    state: ptr[EventState]
    fixed: u64
    count: u64
    fields: array[SyntheticField, 64]


@native
def stack_length(value: ptr[Value]) -> u64:
    """The number of addresses of a stack."""
    words = cast(ptr[u64], value.word)
    count: u64 = 0
    while count < value.extent >> 3 and words[count] != 0:
        count += 1
    return count


@native
def text_length(value: ptr[Value]) -> u64:
    text = cast(ptr[u8], value.word)
    length: u64 = 0
    while length < value.extent and text[length] != 0:
        length += 1
    return length


@native
def dynamic_size(field: ptr[SyntheticField], value: ptr[Value]) -> u64:
    """Bytes that a field takes after the fields: no more than when it was measured, since that has set the value's extent."""
    if field.kind == DYNAMIC_TEXT:
        return text_length(value) + 1
    return 8 * (1 + stack_length(value)) if field.kind == DYNAMIC_STACK else 0


@native
def put_dynamic(field: ptr[SyntheticField], value: ptr[Value], record: ptr[u8], at: u64, size: u64) -> void:
    """Write a dynamic field: its word, and its `size` bytes at offset `at`."""
    cast(ptr[u64], addressof(record[field.offset]))[0] = size << 16 | at
    to = addressof(record[at])
    if field.kind == DYNAMIC_TEXT:
        put_text(to, size, value)
        return
    words = cast(ptr[u64], to)
    addresses = cast(ptr[u64], value.word)
    count = (size >> 3) - 1
    words[0] = count
    for index in range(count):
        words[1 + index] = addresses[index]


@native
def put_field(field: ptr[SyntheticField], value: ptr[Value], record: ptr[u8]) -> void:
    """Write a field that is not dynamic."""
    to = addressof(record[field.offset])
    if field.kind == TEXT:
        put_text(to, field.extent, value)
        return
    for index in range(min(field.extent, 8)):
        to[index] = cast(u8, value.word >> 8 * index)


@native
def fill_record(event: ptr[SyntheticRecord], values: ptr[Value], record: ptr[u8]) -> void:
    """Write all fields, and behind them what is dynamic."""
    for index in range(8, event.fixed):
        record[index] = 0
    at = event.fixed
    for index in range(min(event.count, MAX_FIELDS)):
        field = addressof(event.fields[index])
        value = addressof(values[index])
        length = dynamic_size(field, value)
        if length == 0:
            put_field(field, value, record)
        else:
            put_dynamic(field, value, record, at, length)
            at += length


@native
def measure(event: ptr[SyntheticRecord], values: ptr[Value]) -> u64:
    """The record's size. Texts and stacks are cut to what they are now: another thread may make them longer meanwhile."""
    size = event.fixed
    for index in range(min(event.count, MAX_FIELDS)):
        field = addressof(event.fields[index])
        value = addressof(values[index])
        if field.kind == DYNAMIC_TEXT:
            value.extent = text_length(value)
        elif field.kind == DYNAMIC_STACK:
            value.extent = 8 * stack_length(value)
        size += dynamic_size(field, value)
    return size


@native(name="event_generate")
def generate(argument: u64, values: ptr[u8], count: u64, point: ptr[StackPoint]) -> void:
    """Record a synthetic event, subject to its filters and triggers. `values`: a Value for each field."""
    event = cast(ptr[SyntheticRecord], argument)
    state = event.state
    if state.count == 0:
        return
    given = cast(ptr[Value], values)
    size = measure(event, given)
    record = begin_judged_record(state, size)
    if record == null:
        return
    fill_record(event, given, record)
    for index in range(state.count):
        at: StackPoint = zeroed
        if point != null:
            copy(addressof(at), point)
        at.time = 0
        record_judged(state.targets[index], state.type_id, record, size, addressof(at))
    scratch = scratch_of(state, current())
    release(scratch, cast(u64, record) - cast(u64, addressof(scratch.text[0])))


FUNCTIONS = (generate,)
