"""The queue from hits to the histograms that Python keeps: those with variables, actions, expressions or times.

A hit copies its record, with state that would be lost later, into a slot. Hits never wait: when every slot is taken, a hit
is dropped and counted as such.
"""

from __future__ import annotations

from ftrace.events.filters.matching import read_cpu
from ftrace.events.triggers.records import Call
from ftrace.ring_buffer.clock_state import clock_now, system_now
from ftrace.ring_buffer.records import RingBuffer
from ftrace.unwind.walk import StackPoint
from sandbox.native import (
    Structure,
    addressof,
    array,
    atomic_add,
    atomic_cas,
    cast,
    i64,
    load,
    native,
    null,
    ptr,
    store,
    struct,
    u8,
    u64,
    void,
    volatile_load,
)
from sandbox.threads.system_calls import get_task_comm

SLOTS = 4096
MAX_RECORD = 4096
"""The maximum size of a record in a slot, in bytes; longer records are cut."""
STACK_BYTES = 128
CLOCK_MONOTONIC = 1


@struct
class QueuedHit(Structure):
    """A slot: a hit that is queued."""

    ready: u64  # the hit's number, from 1 on; written last
    target: u64  # the QueueTarget of the hit
    timestamp: u64
    cpu: u64
    comm: array[u8, 16]
    stack: array[u64, 16]
    length: u64
    record: array[u8, 4096]


@struct
class HitQueue(Structure):
    """The slots, used in turn. `taken` and `done` count hits."""

    taken: u64
    done: u64
    slots: u64
    buffer: ptr[RingBuffer]  # the buffer whose clock gives time stamps; null: CLOCK_MONOTONIC
    rseq: i64
    capture: Call
    capture_argument: u64


@struct
class QueueTarget(Structure):
    """A histogram, as hits use it. `with_stack`: whether hits store their stacks."""

    queue: ptr[HitQueue]
    number: u64
    dropped: u64
    with_stack: u64


@native
def take_slot(queue: ptr[HitQueue]) -> u64:
    """Claim a slot. Returns the hit's number, from 1 on; 0 if all slots are taken."""
    taken = load(addressof(queue.taken), "relaxed")
    while taken - load(addressof(queue.done), "acquire") < SLOTS:
        if atomic_cas(addressof(queue.taken), taken, taken + 1, "acq_rel"):
            return taken + 1
        taken = load(addressof(queue.taken), "relaxed")
    return 0


@native
def queue_hit(argument: u64, record: ptr[u8], length: u64, point: ptr[StackPoint]) -> void:
    """The call of such a histogram's trigger: queue the hit."""
    target = cast(ptr[QueueTarget], argument)
    queue = target.queue
    number = take_slot(queue)
    if number == 0:
        atomic_add(addressof(target.dropped), 1, "relaxed")
        return
    slot = addressof(cast(ptr[QueuedHit], queue.slots)[(number - 1) % SLOTS])
    slot.target = target.number
    if queue.buffer != null:
        slot.timestamp = clock_now(volatile_load(addressof(queue.buffer.live)).clock)
    else:
        slot.timestamp = system_now(CLOCK_MONOTONIC)
    slot.cpu = cast(u64, read_cpu(queue.rseq))
    get_task_comm(cast(ptr[u8], addressof(slot.comm)))
    if target.with_stack != 0 and cast(u64, queue.capture) != 0:
        for index in range(16):
            slot.stack[index] = 0
        queue.capture(queue.capture_argument, cast(ptr[u8], addressof(slot.stack)), STACK_BYTES, point)
    slot.length = min(length, MAX_RECORD)
    for index in range(min(length, MAX_RECORD)):
        slot.record[index] = record[index]
    store(addressof(slot.ready), number, "release")
