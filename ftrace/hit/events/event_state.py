"""EventState, which an event's handlers find as the `action` of their probe, and the native functions they call.

The handlers themselves are generated from the event's definition (ftrace.tracing.events.hit.handler_source).
"""

from __future__ import annotations

from typing import TypeAlias

from ftrace.hit.events.builtin_records import STACKS, record_stack
from ftrace.hit.events.records import Condition, TriggerTable, run_post_triggers, run_triggers
from ftrace.hit.recursion import INSIDE
from ftrace.hit.ring_buffer.records import Mark, Reservation, RingBuffer
from ftrace.hit.ring_buffer.writer import commit, reserve, reserve_for
from ftrace.hit.task_filter import TaskFilter, ignores_task
from ftrace.hit.unwind.walk import StackPoint
from ftrace.hit.x86_64.pt_regs import pt_regs
from ftrace.hit.x86_64.stubs import RETURN_POINT
from sandbox.native import *
from sandbox.threads.acting import shown_comm
from sandbox.threads.tasks import Task, current, task_get

MAX_TARGETS = 32
"""The maximum number of trace arrays that record one event: the top level's and those of instances."""
SCRATCH = 1 << 16
"""Size of a task's scratch memory in bytes: for the event it is recording, and for events that a signal interrupted."""
_USABLE = SCRATCH - 8
MAX_TEXT = 4096
"""The maximum length of a string, with its NUL, in bytes."""
SYMBOLS = ("event_begin_judged", "event_record_judged", "event_record_passes", "event_symbol_text")
"""The functions of the runtime that handlers call."""
_DECIMAL = 10


@struct
class EventTarget(Structure):
    """An event in one trace array, as handlers use it."""

    buffer: ptr[RingBuffer]
    tracing_on: ptr[u64]
    recording: u64  # 0: only its triggers run (soft-disabled)
    filter: Condition
    triggers: ptr[ptr[TriggerTable]]
    tasks: ptr[TaskFilter]
    judging: ptr[
        u64
    ]  # of the trace array: which stacks are recorded with each event, and TASKS (ftrace.hit.events.builtin_records)


@struct
class EventState(Structure):
    """The native state of one probe of an event. It begins as an Early does: `early` is the function, or 0."""

    early: u64
    type_id: u64
    hits: u64  # address of the first task's hit counter
    hits_stride: u64
    scratch: u64  # address of the first task's Scratch
    shortcut: (
        u64  # address of a function that handles some hits without a record (tracing.events.hit.shortcut_source), or 0
    )
    count: u64  # of targets
    targets: array[ptr[EventTarget], 32]
    constants: array[u64, 128]  # addresses of symbols that arguments name


Shortcut: TypeAlias = fn_preserve_most[i32, u64, ptr[pt_regs]]
"""shortcut(p, regs), of the entry of a kprobe."""
FunctionShortcut: TypeAlias = fn_preserve_most[i32, u64, u64, u64, ptr[pt_regs]]
"""shortcut(fp, ip, ret_ip, regs), of the entry of an fprobe."""


@struct
class Scratch(Structure):
    """A task's scratch memory: the text of strings, and records that a filter or trigger has to see first."""

    used: u64
    text: array[u8, 65528]


@native(inline=True)
def ip_of(stub: u64) -> u64:
    """The address of the location whose stub the entry trampolines return to."""
    return cast(ptr[u64], addressof(cast(ptr[u8], stub)[-RETURN_POINT]))[0]


@native(inline=True)
def count_hit_of(state: ptr[EventState], index: u64) -> void:
    """Add one to the hit counter of the task with that index, which is the running thread's."""
    counter = cast(ptr[u64], state.hits + index * state.hits_stride)
    counter[0] += 1


@native(inline=True)
def count_hit(state: ptr[EventState]) -> void:
    """Add one to the running thread's hit counter."""
    count_hit_of(state, cast(u64, current().index))


@native(inline=True)
def scratch_of(state: ptr[EventState], task: ptr[Task]) -> ptr[Scratch]:
    """The scratch memory of the running thread, whose task it is."""
    return cast(ptr[Scratch], state.scratch + cast(u64, task.index) * SCRATCH)


copy_text = extern("ftrace_probe_read_str", fn[i64, u64, u64, u64])
put_symbol_text = extern("event_symbol_text", fn[u64, ptr[u8], u64, u64], cc="preserve_most")


@native(inline=True)
def claim(scratch: ptr[Scratch], size: u64) -> u64:
    """Claim up to `size` bytes of scratch memory from `used` on. Returns their end; a record made in a signal starts there."""
    end = min(scratch.used + size, _USABLE)
    volatile_store(addressof(scratch.used), end)
    signal_fence()
    return end


@native(inline=True)
def release(scratch: ptr[Scratch], start: u64) -> void:
    """Release what was claimed from `start` on."""
    signal_fence()
    volatile_store(addressof(scratch.used), start)


# -- text ---------------------------------------------------------------------------------------------------------


@native(noinline=True)
def fetch_text(scratch: ptr[Scratch], at: u64, end: u64, address: u64) -> u64:
    """Copy the text at `address` to offset `at` of the scratch memory. Its length with the NUL; 0 if it cannot be read."""
    if at + 8 > end:
        return 0
    size = copy_text(cast(u64, addressof(scratch.text[at])), address, min(end - at, MAX_TEXT))
    return cast(u64, size) if size > 0 else 0


@native(noinline=True, bounded=False)
def fetch_comm(scratch: ptr[Scratch], at: u64, end: u64) -> u64:
    """Copy the running thread's name to offset `at`. Its length with the NUL; 0 if it does not fit."""
    if at + 16 > end:
        return 0
    to = addressof(scratch.text[at])
    shown_comm(to)
    length: u64 = 0
    while length < 15 and to[length] != 0:
        length += 1
    to[length] = 0
    return length + 1


@native(inline=True)
def fetch_symbol(scratch: ptr[Scratch], at: u64, end: u64, value: u64) -> u64:
    """Write an address as a symbol to offset `at`. Its length with the NUL; 0 if it does not fit."""
    return put_symbol_text(addressof(scratch.text[at]), end - at, value)


@native(inline=True)
def put_text(scratch: ptr[Scratch], at: u64, end: u64, word: u64) -> void:
    """Write eight bytes of a constant text."""
    if at + 8 <= end:
        cast(ptr[u64], addressof(scratch.text[at]))[0] = word


@native(inline=True, bounded=False)
def copy_words(to: ptr[u8], source: ptr[u8], size: u64) -> void:
    """Copy `size` bytes, rounded up to a multiple of four."""
    end = size + 3
    at: u64 = 16
    while at <= end:
        pair = cast(ptr[u64], addressof(source[at - 16]))
        there = cast(ptr[u64], addressof(to[at - 16]))
        there[0] = pair[0]
        there[1] = pair[1]
        at += 16
    if end & 8 != 0:
        cast(ptr[u64], addressof(to[at - 16]))[0] = cast(ptr[u64], addressof(source[at - 16]))[0]
        at += 8
    if end & 4 != 0:
        cast(ptr[u32], addressof(to[at - 16]))[0] = cast(ptr[u32], addressof(source[at - 16]))[0]


@native(inline=True)
def is_judged(target: ptr[EventTarget]) -> bool_:
    """Whether the record is made in scratch memory first: for a filter, a trigger, or a stack to be recorded."""
    condition = volatile_load(cast(ptr[u64], addressof(target.filter)))
    table = volatile_load(cast(ptr[u64], target.triggers))
    return (condition | table) != 0 or is_judged_by_array(target)


@native(inline=True)
def is_judged_by_array(target: ptr[EventTarget]) -> bool_:
    """The same of an event without filter and triggers."""
    return volatile_load(target.judging) != 0 or volatile_load(addressof(target.recording)) == 0


@native(inline=True)
def needs_record(target: ptr[EventTarget]) -> bool_:
    """Whether hits may be recorded, or excluded from triggers: then a histogram's shortcut leaves them to the handler."""
    return volatile_load(addressof(target.recording)) != 0 or volatile_load(addressof(target.tasks.is_set)) != 0


# -- the record ---------------------------------------------------------------------------------------------------

begin_judged = extern("event_begin_judged", fn[ptr[u8], ptr[EventState], u64], cc="preserve_most")
judge = extern(
    "event_record_judged", fn[void, ptr[EventState], ptr[EventTarget], ptr[u8], u64, u64, u64, u64], cc="preserve_most"
)

passes = extern("event_record_passes", fn[u64, ptr[EventState], u64, ptr[u8], u64], cc="preserve_most")


@native(inline=True)
def begin_record(
    state: ptr[EventState], target: ptr[EventTarget], judged: bool_, mark: ptr[Mark], place: ptr[Reservation], size: u64
) -> bool_:
    """Whether the event is recorded; the address for the fields is then in the ring buffer, or in scratch memory if `judged`."""
    if likely(not judged):
        if volatile_load(target.tracing_on) == 0:
            return False
        return reserve(target.buffer, mark, place, state.type_id, size)
    place.event = begin_judged(state, size)
    return place.event != null


@native(cc="preserve_most", noinline=True, name="event_begin_judged")
def begin_judged_record(state: ptr[EventState], size: u64) -> ptr[u8]:
    """The address of a record in scratch memory; null if it does not fit."""
    scratch = scratch_of(state, current())
    start = scratch.used
    if claim(scratch, size + 8) < start + size + 8:
        release(scratch, start)
        return null
    return addressof(scratch.text[start])


@native(inline=True)
def begin_plain_record(
    state: ptr[EventState],
    target: ptr[EventTarget],
    task: ptr[Task],
    mark: ptr[Mark],
    place: ptr[Reservation],
    size: u64,
) -> bool_:
    """As begin_record for a record that is not judged. `task`: the running thread's."""
    if volatile_load(target.tracing_on) == 0:
        return False
    return reserve_for(task, target.buffer, mark, place, state.type_id, size)


@native(inline=True)
def end_record(
    state: ptr[EventState],
    target: ptr[EventTarget],
    judged: bool_,
    mark: ptr[Mark],
    place: ptr[Reservation],
    size: u64,
    ip: u64,
    sp: u64,
    bp: u64,
) -> void:
    """Commit or judge a record whose fields are complete. `ip`, `sp`, `bp`: of the hit."""
    if likely(not judged):
        commit(mark, place)
    else:
        judge(state, target, place.event, size, ip, sp, bp)


@native(inline=True)
def is_reserved(target: ptr[EventTarget]) -> bool_:
    """Whether the kernel would reserve the record before triggers see it, or copy it after they have acted.

    trace_event_buffer_lock_reserve(): without a filter, a trigger that turns tracing on is too late for this event.
    """
    condition = volatile_load(cast(ptr[u64], addressof(target.filter)))
    is_copied = condition != 0 or volatile_load(addressof(target.recording)) == 0
    return is_copied or volatile_load(target.tracing_on) != 0


@native(cc="preserve_most", noinline=True, name="event_record_judged")
def end_judged_record(
    state: ptr[EventState], target: ptr[EventTarget], record: ptr[u8], size: u64, ip: u64, sp: u64, bp: u64
) -> void:
    """Judge a record in scratch memory, and release that. `ip`, `sp`, `bp`: of the hit."""
    point: StackPoint = zeroed
    point.ip = ip
    point.sp = sp
    point.bp = bp
    record_judged(target, state.type_id, record, size, addressof(point))
    scratch = scratch_of(state, current())
    release(scratch, cast(u64, record) - cast(u64, addressof(scratch.text[0])))


@native(cc="preserve_most", noinline=True, name="event_record_passes")
def record_passes(state: ptr[EventState], condition: u64, record: ptr[u8], size: u64) -> u64:
    """Whether a record in scratch memory passes a filter; it is released, and not kept."""
    cast(ptr[u64], record)[0] = cast(u64, current().pid) << 32
    result = cast(Condition, condition)(record, size)
    scratch = scratch_of(state, current())
    release(scratch, cast(u64, record) - cast(u64, addressof(scratch.text[0])))
    return result


@native
def record_judged(target: ptr[EventTarget], type_id: u64, record: ptr[u8], size: u64, point: ptr[StackPoint]) -> void:
    """Run the triggers, and record if the filter passes: trace_event_buffer_commit()."""
    cast(ptr[u64], record)[0] = type_id | cast(u64, current().pid) << 32
    table = volatile_load(target.triggers)
    if ignores_task(target.tasks):
        if table != null and table.needs_record == 0:
            run_triggers(table, null, size, point)
        return
    post: u64 = 0
    reserved = True
    recording = volatile_load(addressof(target.recording))
    if table != null:
        seen: ptr[u8] = null
        if table.needs_record != 0:
            seen = record
            reserved = is_reserved(target)
        post = run_triggers(table, seen, size, point)
        if table.needs_record != 0:  # else a trigger that enables or disables this event is too late for this hit
            recording = volatile_load(addressof(target.recording))
    if reserved and recording != 0 and volatile_load(target.tracing_on) != 0:
        stacks = volatile_load(target.judging) & STACKS
        if record_filtered(target, type_id, record, size, point) and stacks != 0 and point.ip != 0:
            record_stack(target.buffer, point, stacks)
    if post != 0:
        run_post_triggers(table, post, record, size, point)


@native
def record_filtered(
    target: ptr[EventTarget], type_id: u64, record: ptr[u8], size: u64, point: ptr[StackPoint]
) -> bool_:
    """Record if the filter passes, and note the record's time. Returns whether it passes."""
    condition = volatile_load(cast(ptr[u64], addressof(target.filter)))
    if condition != 0 and cast(Condition, condition)(record, size) == 0:
        return False
    mark: Mark = zeroed
    place: Reservation = zeroed
    if reserve(target.buffer, addressof(mark), addressof(place), type_id, size):
        copy_words(addressof(place.event[8]), addressof(record[8]), size - 8)
        point.time = place.stamp
        commit(addressof(mark), addressof(place))
    return True


@native(noinline=True, name="event_record_made")
def record_made(target: ptr[EventTarget], type_id: u64, record: ptr[u8], size: u64, ip: u64, sp: u64, bp: u64) -> void:
    """Judge a record that no probe has made, outside hits. `ip`, `sp`, `bp`: where it is made; 0: at no known place."""
    task = task_get()
    if task == null:
        return
    point: StackPoint = zeroed
    point.ip = ip
    point.sp = sp
    point.bp = bp
    outer = task.rec
    task.rec = outer | INSIDE  # who frees triggers and filters waits for it, as for a hit
    signal_fence()
    record_judged(target, type_id, record, size, addressof(point))
    signal_fence()
    task.rec = outer


FUNCTIONS = (begin_judged_record, end_judged_record, record_passes, record_made)
