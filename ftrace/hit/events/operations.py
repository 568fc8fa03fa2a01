"""Compute the keys, values and variables of a histogram from a hit: operations in postfix order, carried out in native code."""

from __future__ import annotations

from ftrace.hit.events.matching import read_cpu
from ftrace.hit.events.records import Call
from ftrace.hit.ring_buffer.clock_state import clock_now, system_now
from ftrace.hit.ring_buffer.records import RingBuffer
from ftrace.hit.unwind.walk import StackPoint
from sandbox.native import *
from sandbox.threads.acting import shown_comm

U8, I8, U16, I16, U32, I32, WORD = range(7)
"""Numbers of the record. `operand`: the offset."""
TEXT, DYNAMIC_TEXT, RECORD_STACK = range(7, 10)
"""Texts and stacks of the record. `operand`: the offset; `extent`: the maximum length of a text."""
CONSTANT, CPU, TIMESTAMP, COMM, STACK, VARIABLE, OWN = range(10, 17)
"""`operand`: the number; of TIMESTAMP a divisor; of VARIABLE and OWN an index."""
LOG2, BUCKET, QUOTIENT, NEGATIVE = range(17, 21)
"""Operators with one operand on the stack. `operand`: the width of buckets, the divisor."""
ADD, SUBTRACT, MULTIPLY, DIVIDE = range(21, 25)
"""Operators with two."""
MAX_VARIABLES = 16
STACK_WORDS = 16
CLOCK_MONOTONIC = 1
NUMBER_KIND, TEXT_KIND, STACK_KIND = range(3)
_SHIFT = 20
_ALL_ONES = 0xFFFF_FFFF_FFFF_FFFF


@struct
class Operation(Structure):
    """One step of a computation."""

    code: u64
    operand: u64
    extent: u64


@struct
class Program(Structure):
    """The operations of one value. `kind`: of its result."""

    operations: ptr[Operation]
    count: u64
    kind: u64


@struct
class Value(Structure):
    """A number; or the address of a text or of a stack, and how many bytes it has at most: it may end before, with a zero."""

    word: u64
    extent: u64


@struct
class Source(Structure):
    """What values are made of besides the record."""

    buffer: ptr[RingBuffer]  # the buffer whose clock gives times; null: CLOCK_MONOTONIC
    rseq: i64
    capture: Call  # stores the stack of a hit
    capture_argument: u64


@struct
class CountedRecord(Structure):
    """A record that is being counted by a histogram."""

    record: ptr[u8]
    length: u64
    point: ptr[StackPoint]
    source: ptr[Source]
    time: u64  # 0: not read yet
    has_stack: u64
    variables: ptr[Value]  # those of other histograms
    own: ptr[Value]
    comm: array[u8, 16]
    stack: array[u64, 16]


@native(inline=True)
def read_number(code: u64, at: u64) -> u64:
    """A number of the record, sign-extended or zero-extended."""
    if code == WORD:
        return cast(ptr[u64], at)[0]
    if code == I32:
        return cast(u64, cast(ptr[i32], at)[0])
    if code == U32:
        return cast(u64, cast(ptr[u32], at)[0])
    if code == U8:
        return cast(u64, cast(ptr[u8], at)[0])
    if code == I8:
        return cast(u64, cast(ptr[i8], at)[0])
    if code == U16:
        return cast(u64, cast(ptr[u16], at)[0])
    return cast(u64, cast(ptr[i16], at)[0])


@native
def begin_hit(
    hit: ptr[CountedRecord], source: ptr[Source], record: ptr[u8], length: u64, point: ptr[StackPoint]
) -> void:
    """Prepare the structure of a hit, whose variables stay as they are."""
    hit.record = record
    hit.length = length
    hit.point = point
    hit.source = source
    hit.time = 0 if point == null else point.time
    hit.has_stack = 0


@native
def time_of(hit: ptr[CountedRecord]) -> u64:
    """The time of the hit's record, else of its first use, by the trace clock."""
    if hit.time == 0:
        buffer = hit.source.buffer
        if buffer == null:
            hit.time = system_now(CLOCK_MONOTONIC)
        else:
            hit.time = clock_now(volatile_load(addressof(buffer.live)).clock)
    return hit.time


@native
def capture_once(hit: ptr[CountedRecord]) -> void:
    """Store the stack of the hit, unless it has been stored."""
    if hit.has_stack != 0:
        return
    hit.has_stack = 1
    for index in range(STACK_WORDS):
        hit.stack[index] = 0
    if cast(u64, hit.source.capture) != 0:
        to = cast(ptr[u8], addressof(hit.stack))
        hit.source.capture(hit.source.capture_argument, to, STACK_WORDS * 8, hit.point)


@native
def point_at(hit: ptr[CountedRecord], value: ptr[Value], start: u64, size: u64) -> void:
    """Set the value to `size` bytes of the record, cut at the record's end."""
    start = min(start, hit.length)
    value.word = cast(u64, addressof(hit.record[start]))
    value.extent = min(size, hit.length - start)


@native
def fetch_bytes(operation: ptr[Operation], hit: ptr[CountedRecord], value: ptr[Value]) -> void:
    """Fetch a text or a stack."""
    start = operation.operand
    if operation.code == TEXT:
        point_at(hit, value, start, operation.extent)
    elif operation.code == DYNAMIC_TEXT:
        location = cast(ptr[u32], addressof(hit.record[start]))[0]
        point_at(hit, value, cast(u64, location & 0xFFFF), min(cast(u64, location >> 16), operation.extent))
    elif operation.code == RECORD_STACK:
        place = cast(u64, cast(ptr[u16], addressof(hit.record[start]))[0])
        count: u64 = 0
        if place + 8 <= hit.length:
            count = min(cast(ptr[u64], addressof(hit.record[place]))[0], STACK_WORDS)
        point_at(hit, value, place + 8, 8 * count)
    elif operation.code == COMM:
        value.word = cast(u64, addressof(hit.comm))
        value.extent = shown_comm(addressof(hit.comm[0]))
    else:
        capture_once(hit)
        value.word = cast(u64, addressof(hit.stack))
        value.extent = STACK_WORDS * 8


@native
def fetch(operation: ptr[Operation], hit: ptr[CountedRecord], value: ptr[Value]) -> void:
    """Fetch an operand."""
    code = operation.code
    value.extent = 0
    if likely(code <= WORD):
        value.word = read_number(code, cast(u64, addressof(hit.record[operation.operand])))
    elif code == CONSTANT:
        value.word = operation.operand
    elif code == TIMESTAMP:
        value.word = (time_of(hit) + operation.operand // 2) // operation.operand
    elif code == VARIABLE:
        value.word = hit.variables[operation.operand].word
        value.extent = hit.variables[operation.operand].extent
    elif code == OWN:
        value.word = hit.own[operation.operand].word
        value.extent = hit.own[operation.operand].extent
    elif code == CPU:
        value.word = cast(u64, read_cpu(hit.source.rseq))
    else:
        fetch_bytes(operation, hit, value)


@native(inline=True)
def logarithm(number: u64) -> u64:
    """The smallest n with 2^n >= a number; 0 if 2^n does not fit in a word."""
    return 0 if number < 2 else 64 - leading_zeros(number - 1) & 63


@native(inline=True)
def ratio(number: u64, divisor: u64) -> u64:
    """A quotient, rounded down. A division by zero gives the largest word."""
    return number // divisor if divisor != 0 else _ALL_ONES


@native(inline=True)
def rounded_up(number: u64, divisor: u64) -> u64:
    """div_by_mult_and_shift() of kernel/trace/trace_events_hist.c, for divisors below 2^20 that are no powers of two."""
    if number < 1 << _SHIFT:
        return number * ((1 << _SHIFT) // divisor) + (1 << _SHIFT) - 1 >> _SHIFT
    return number // divisor


@native
def applied(operation: ptr[Operation], number: u64) -> u64:
    """The result of an operator with one operand."""
    if operation.code == LOG2:
        return logarithm(number)
    if operation.code == BUCKET:
        return number // operation.operand * operation.operand
    if operation.code == QUOTIENT:
        return rounded_up(number, operation.operand)
    return 0 - number


@native
def combined(code: u64, left: u64, right: u64) -> u64:
    """The result of an operator with two operands."""
    if code == ADD:
        return left + right
    if code == SUBTRACT:
        return left - right
    return left * right if code == MULTIPLY else ratio(left, right)


@native(noinline=True)
def compute(program: ptr[Program], hit: ptr[CountedRecord], value: ptr[Value]) -> void:
    """Compute a value. An expression has at most four operators, hence five operands."""
    words: array[u64, 8] = zeroed
    depth: u64 = 0
    for index in range(program.count):
        operation = addressof(program.operations[index])
        if operation.code < LOG2:
            fetch(operation, hit, value)
            words[depth & 7] = value.word
            depth += 1
        elif operation.code < ADD:
            words[depth - 1 & 7] = applied(operation, words[depth - 1 & 7])
        else:
            depth -= 1
            words[depth - 1 & 7] = combined(operation.code, words[depth - 1 & 7], words[depth & 7])
    value.word = words[0]


@native
def put_text(to: ptr[u8], room: u64, value: ptr[Value]) -> void:
    """Copy a text, cut to `room` bytes with a final 0."""
    source = cast(ptr[u8], value.word)
    length: u64 = 0
    end = min(value.extent, room - 1)
    while length < end and source[length] != 0:
        to[length] = source[length]
        length += 1
    to[length] = 0


@native
def put_stack(to: ptr[u64], words: u64, value: ptr[Value]) -> u64:
    """Copy a stack, up to `words` addresses. Returns their number."""
    source = cast(ptr[u64], value.word)
    count: u64 = 0
    end = min(value.extent >> 3, words)
    while count < end and source[count] != 0:
        to[count] = source[count]
        count += 1
    return count
