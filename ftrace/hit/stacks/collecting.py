"""What a hit does to count a call by its stack: native handlers that also time it, and the call of a trigger. Native."""

from __future__ import annotations

from ftrace.hit.account import self_time
from ftrace.hit.events.operations import read_number
from ftrace.hit.records import Probe
from ftrace.hit.stacks.python_frames import innermost_frame, python_layout, python_node
from ftrace.hit.stacks.stack_table import (
    NATIVE_DEPTH,
    StackTable,
    ThreadStack,
    add_weight,
    count,
    node_of,
    thread_area,
)
from ftrace.hit.unwind.call_frames import Reading
from ftrace.hit.unwind.walk import StackPoint, is_unknown, leave, step_to_known
from ftrace.hit.x86_64.pt_regs import pt_regs
from sandbox.native import *
from sandbox.threads.tasks import current

_WORD = 8


@struct
class StackCall(Structure):
    """A call's data from its entry to its return."""

    began: u64  # ticks when the entry handler began
    entered: u64  # and when it ended
    inner: u64  # Row.inner at the entry
    node: u64


@struct
class StackEvent(Structure):
    """The argument of a trigger. `source`: the kind of number (ftrace.hit.events.operations) at `start` in the record.

    `factors`: 0 if nothing is added up, 1 if that number is, 2 if its product with the number at `start2` is.
    """

    table: ptr[StackTable]
    factors: u64
    source: u64
    start: u64
    source2: u64
    start2: u64


@native(inline=True)
def in_interpreter(address: u64) -> bool_:
    layout = addressof(python_layout)
    return address - layout.interpreter < layout.interpreter_size


@native(noinline=True)
def walk_callers(point: ptr[StackPoint], frames: ptr[u64], in_python: bool_) -> u64:
    """Store the return addresses, the point's first; `in_python`: up to the interpreter. Returns their number."""
    reading: Reading = zeroed
    is_exact = False
    number: u64 = 0
    while number < NATIVE_DEPTH and not (in_python and in_interpreter(point.ip)):
        frames[number] = point.ip
        number += 1
        if not step_to_known(point, addressof(reading), is_exact):
            if point.ip != frames[number - 1] and number < NATIVE_DEPTH and is_unknown(point.ip):
                frames[number] = point.ip
                number += 1
            break
        is_exact = reading.is_signal_frame != 0
    return number


@native(inline=True)
def native_frames(point: ptr[StackPoint], frames: ptr[u64], in_python: bool_) -> u64:
    """The return addresses of a function that begins at the point. What the interpreter calls itself has none."""
    if not leave(point, point.sp + _WORD, 0) or (in_python and in_interpreter(point.ip)):
        return 0
    return walk_callers(point, frames, in_python)


@native(noinline=True)
def stack_node(table: ptr[StackTable], area: ptr[ThreadStack], point: ptr[StackPoint]) -> u64:
    """The node of the function that begins at the point, under its callers; 0 if there is no place for it."""
    function = point.ip
    frames = cast(ptr[u64], addressof(area.frames[0]))
    innermost = innermost_frame(addressof(python_layout))
    number = native_frames(point, frames, innermost != 0)
    found: array[u64, 1] = zeroed
    if innermost != 0 and not python_node(table, area, innermost, addressof(found[0])):
        return 0
    node = found[0]
    for index in range(min(number, NATIVE_DEPTH)):
        node = node_of(table, node, frames[number - 1 - index])
        if unlikely(node == 0):
            return 0
    return node_of(table, node, function)


@native(noinline=True)
def counted_node(table: ptr[StackTable], point: ptr[StackPoint]) -> u64:
    """Count a call by its stack. Returns its node; 0, and a lost call, if that is not known.

    A hit of a signal's handler inside this has no memory for its frames.
    """
    node: u64 = 0
    if likely(current() != null):
        area = thread_area(table)
        if single_cas(addressof(area.is_busy), 0, 1):
            node = stack_node(table, area, point)
            volatile_store(addressof(area.is_busy), 0)
    if likely(node != 0):
        count(table, node)
    else:
        atomic_add(addressof(table.head.lost), 1, "relaxed")
    return node


@native(cc="preserve_most")
def stack_entry(probe: ptr[Probe], ip: u64, ret_ip: u64, regs: ptr[pt_regs], data: ptr[StackCall]) -> i32:
    began = rdtsc()
    table = cast(ptr[StackTable], probe.action)
    point: StackPoint = zeroed
    point.ip = ip
    point.sp = regs.sp
    point.bp = regs.bp
    node = counted_node(table, addressof(point))
    if data != null:
        data.began = began
        data.node = node
        if node != 0:
            data.inner = thread_area(table).row.inner
        data.entered = rdtsc()
    return 0


@native(cc="preserve_most")
def stack_exit(probe: ptr[Probe], ip: u64, ret_ip: u64, regs: u64, data: ptr[StackCall]) -> void:
    """Add the call's own ticks: without probed calls inside, and without what these handlers take."""
    left = rdtsc()
    if data.node == 0:
        return
    table = cast(ptr[StackTable], probe.action)
    row = addressof(thread_area(table).row)
    add_weight(table, data.node, self_time(row, data.inner, left - data.entered))
    row.inner = max(row.inner, data.inner + (rdtsc() - data.began))


@native
def stack_trigger(argument: u64, record: ptr[u8], length: u64, point: ptr[StackPoint]) -> void:
    """The call of a trigger."""
    event = cast(ptr[StackEvent], argument)
    if point == null:
        return
    here: StackPoint = zeroed
    copy(addressof(here), point)
    node = counted_node(event.table, addressof(here))
    if node != 0 and event.factors != 0:
        number = read_number(event.source, cast(u64, addressof(record[event.start])))
        if event.factors == 2:
            number *= read_number(event.source2, cast(u64, addressof(record[event.start2])))
        add_weight(event.table, node, number)


FUNCTIONS = (stack_entry, stack_exit, stack_trigger)
