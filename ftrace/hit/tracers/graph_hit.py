"""Native handlers of the tracer function_graph, for entries and returns.

trace_graph_entry() and trace_graph_return() of kernel/trace/trace_functions_graph.c. Each call keeps one word from its entry to
its return: the time of entry, the depth, and flags for the return.
"""

from __future__ import annotations

from ftrace.hit.address_table import Table, look_up
from ftrace.hit.nodes import below, is_armed, probes_of
from ftrace.hit.records import Probe
from ftrace.hit.ring_buffer.clock_state import MONOTONIC, THREAD_CPUTIME, ClockState, clock_now, system_now
from ftrace.hit.ring_buffer.records import Mark, Reservation
from ftrace.hit.ring_buffer.writer import commit, reserve_for
from ftrace.hit.tracers.function_hit import FunctionState, is_recorded
from ftrace.hit.x86_64.pt_regs import pt_regs
from sandbox.native import *
from sandbox.threads.tasks import Task, current

TRACE_GRAPH_RET, TRACE_GRAPH_ENT = 10, 11
_ENTRY_SIZE, _RETURN_SIZE = 20, 48

# The word of a call: the time of entry modulo 2^48 ns (three days), two flags, and the depth.
_TIME_BITS = 48
_TIME = (1 << _TIME_BITS) - 1
_SILENT = 1 << 48  # the return is not recorded, and ends the effect of set_graph_notrace
_AWAKE = 1 << 49  # times exclude the time that the thread slept
_DEPTH_SHIFT = 50
_DEEPEST = (1 << 14) - 1

# GraphTask.inside
_IN_GRAPH = 1  # inside a function of set_graph_function
_IN_NOTRACE = 2  # inside a function of set_graph_notrace

_RECORD, _HOOK, _IGNORE = 0, 1, 2


@struct
class GraphEntry(Structure):
    """A function's entry: the record events/ftrace/funcgraph_entry."""

    common: u64
    func: u64
    depth: u32


@struct
class GraphReturn(Structure):
    """A function's return: the record events/ftrace/funcgraph_exit."""

    common: u64
    func: u64
    retval: u64
    levels: u64  # the depth; in the upper half, the overrun
    calltime: u64
    rettime: u64


@struct
class GraphRules(Structure):
    """The settings that all function_graph tracers of the process share. Tables are null if nothing is selected."""

    functions: ptr[Table]  # set_graph_function
    notrace: ptr[Table]  # set_graph_notrace
    max_depth: u64  # 0: no limit
    threshold: u64  # tracing_thresh in nanoseconds
    no_sleep: u64  # 1: durations exclude the time that a thread slept


@struct
class GraphTask(Structure):
    """A tracer's state for one thread."""

    tid: u32
    inside: u32  # _IN_GRAPH, _IN_NOTRACE
    depth: u64  # traced calls that have not returned
    function_depth: u64  # depth of the call that set _IN_GRAPH
    abandoned: u64  # Task.abandoned when `depth` was last valid
    overrun: u64  # calls that were too deep to trace
    reserved: array[u64, 3]


@struct
class GraphState(Structure):
    """The native state of the tracer in one trace array."""

    plain: FunctionState
    is_special: u64  # not 0: rules apply, or durations have a clock of their own
    rules: ptr[GraphRules]
    clock: ptr[ClockState]  # the clock of durations; null: the records' own time stamps
    tasks: u64  # address of the first thread's GraphTask


@native(inline=True)
def graph_task(state: ptr[GraphState], task: ptr[Task]) -> ptr[GraphTask]:
    return cast(ptr[GraphTask], state.tasks + cast(u64, task.index) * 64)


@native(noinline=True)
def depth_on_stack(task: ptr[Task], probe: ptr[Probe]) -> u64:
    """The number of this thread's calls whose return will be reported to `probe`, without the newest call."""
    depth: u64 = 0
    node = task.top
    while node != task.bottom:
        node = below(node)
        if node != task.bottom:
            probes = probes_of(node)
            for index in range(probes.count):
                if probes.items[index].probe == probe and is_armed(node, index):
                    depth += 1
    return depth


@native(noinline=True)
def renew(own: ptr[GraphTask], task: ptr[Task], probe: ptr[Probe]) -> void:
    """Reset a thread's state, at its first call or at the first after a longjmp past calls that will not return."""
    if own.tid != task.tid:
        own.tid = task.tid
        own.inside = 0
        own.overrun = 0
    own.depth = depth_on_stack(task, probe)
    own.abandoned = task.abandoned
    if own.inside & _IN_GRAPH != 0 and own.depth <= own.function_depth:
        own.inside = own.inside & ~cast(u32, _IN_GRAPH)
    if own.depth == 0:
        own.inside = 0


@native
def is_in_graph(rules: ptr[GraphRules], own: ptr[GraphTask], ip: u64) -> bool_:
    """Whether a function is shown, since it or a caller was selected: ftrace_graph_addr()."""
    functions = volatile_load(addressof(rules.functions))
    if functions == null:
        return True
    if look_up(functions, ip) != 0:
        if own.inside & _IN_GRAPH == 0:
            own.function_depth = own.depth
        own.inside = own.inside | _IN_GRAPH
        return True
    return own.inside & _IN_GRAPH != 0


@native(noinline=True)
def judge_entry(state: ptr[GraphState], own: ptr[GraphTask], ip: u64, word: ptr[u64]) -> u64:
    """Decide whether to record an entry, to only hook its return, or to ignore the call. Sets the flags in `word`."""
    rules = state.rules
    if own.inside & _IN_NOTRACE != 0:
        return _IGNORE
    notrace = volatile_load(addressof(rules.notrace))
    if notrace != null and look_up(notrace, ip) != 0:
        own.inside = own.inside | _IN_NOTRACE
        word[0] = _SILENT
        return _HOOK
    limit = volatile_load(addressof(rules.max_depth))
    if not is_in_graph(rules, own, ip) or (limit != 0 and own.depth >= limit):
        return _IGNORE
    return _HOOK if volatile_load(addressof(rules.threshold)) != 0 else _RECORD


@native(inline=True)
def slept() -> u64:
    """Time that the thread has not been running, in nanoseconds since an arbitrary start."""
    return system_now(MONOTONIC) - system_now(THREAD_CPUTIME)


@native(inline=True)
def record_entry(state: ptr[GraphState], task: ptr[Task], ip: u64, depth: u64, time: ptr[u64]) -> bool_:
    """Record an entry; `time` gets its time stamp. Returns False if the record is lost."""
    mark: Mark = zeroed
    place: Reservation = zeroed
    buffer = state.plain.buffer
    if unlikely(not reserve_for(task, buffer, addressof(mark), addressof(place), TRACE_GRAPH_ENT, _ENTRY_SIZE)):
        return False
    record = cast(ptr[GraphEntry], place.event)
    record.func = ip
    record.depth = cast(u32, depth)
    time[0] = place.stamp
    commit(addressof(mark), addressof(place))
    return True


@native(noinline=True)
def enter_specially(state: ptr[GraphState], own: ptr[GraphTask], ip: u64, data: ptr[u64]) -> i32:
    """Handle an entry while rules apply."""
    data[0] = 0
    if own.depth <= own.function_depth:
        own.inside = own.inside & ~cast(u32, _IN_GRAPH)  # that call returned while there were no rules
    does = judge_entry(state, own, ip, data)
    if does == _IGNORE:
        return 1
    time: array[u64, 1] = zeroed
    if does == _RECORD and not record_entry(state, current(), ip, own.depth, addressof(time[0])):
        return 1
    if does != _RECORD or state.clock != null:
        time[0] = clock_now(own_clock(state))
    if volatile_load(addressof(state.rules.no_sleep)) != 0:
        time[0] -= slept()
        data[0] |= _AWAKE
    data[0] |= own.depth << _DEPTH_SHIFT | time[0] & _TIME
    own.depth += 1
    return 0


@native(inline=True)
def own_clock(state: ptr[GraphState]) -> ptr[ClockState]:
    return state.clock if state.clock != null else state.plain.buffer.live.clock


@native(noinline=True, name="trace_graph_entry_lean")
def enter(probe: ptr[Probe], ip: u64, parent_ip: u64, task: ptr[Task], data: ptr[u64]) -> i32:
    state = cast(ptr[GraphState], probe.action)
    if unlikely(data == null or not is_recorded(addressof(state.plain))):
        return 1
    own = graph_task(state, task)
    if unlikely(own.tid != task.tid or own.abandoned != task.abandoned):
        renew(own, task, probe)
    if unlikely(volatile_load(addressof(state.is_special)) != 0 or own.depth >= _DEEPEST):
        if own.depth >= _DEEPEST:
            own.overrun += 1
            return 1
        return enter_specially(state, own, ip, data)
    depth = own.depth
    own.depth = depth + 1
    time: array[u64, 1] = zeroed
    if unlikely(not record_entry(state, task, ip, depth, addressof(time[0]))):
        own.depth = depth
        return 1
    data[0] = depth << _DEPTH_SHIFT | time[0] & _TIME
    return 0


@native(cc="preserve_most")
def trace_graph_entry(probe: ptr[Probe], ip: u64, parent_ip: u64, regs: u64, data: ptr[u64]) -> i32:
    return enter(probe, ip, parent_ip, current(), data)


@native(inline=True)
def record_return(
    state: ptr[GraphState],
    task: ptr[Task],
    own: ptr[GraphTask],
    ip: u64,
    retval: u64,
    word: u64,
    clock: ptr[ClockState],
) -> void:
    """Record a return. `clock`: that of durations, null for the records' own time stamps."""
    if unlikely(volatile_load(state.plain.tracing_on) == 0):
        return
    levels = word >> _DEPTH_SHIFT | own.overrun << 32
    mark: Mark = zeroed
    place: Reservation = zeroed
    buffer = state.plain.buffer
    if likely(reserve_for(task, buffer, addressof(mark), addressof(place), TRACE_GRAPH_RET, _RETURN_SIZE)):
        record = cast(ptr[GraphReturn], place.event)
        record.func = ip
        record.retval = retval
        record.levels = levels
        time = place.stamp if clock == null else clock_now(clock)
        record.calltime = time - (time - word & _TIME)
        record.rettime = time
        commit(addressof(mark), addressof(place))


@native(cc="preserve_most", noinline=True)
def leave_specially(state: ptr[GraphState], own: ptr[GraphTask], ip: u64, retval: u64, word: u64) -> void:
    """Handle a return while rules apply, or to which they applied at its entry."""
    if own.inside & _IN_GRAPH != 0 and own.depth == own.function_depth:
        own.inside = own.inside & ~cast(u32, _IN_GRAPH)
    if word & _SILENT != 0:
        own.inside = own.inside & ~cast(u32, _IN_NOTRACE)
        return
    if word & _AWAKE != 0:
        word += slept()
    threshold = volatile_load(addressof(state.rules.threshold))
    if threshold == 0 or (clock_now(own_clock(state)) - word & _TIME) >= threshold:
        record_return(state, current(), own, ip, retval, word, state.clock)


@native(noinline=True, name="trace_graph_return_lean")
def leave(probe: ptr[Probe], ip: u64, retval: u64, task: ptr[Task], data: ptr[u64]) -> void:
    state = cast(ptr[GraphState], probe.action)
    own = graph_task(state, task)
    word: u64 = data[0]
    own.depth = word >> _DEPTH_SHIFT
    if unlikely(volatile_load(addressof(state.is_special)) | word & (_SILENT | _AWAKE) != 0):
        leave_specially(state, own, ip, retval, word)
    else:
        record_return(state, task, own, ip, retval, word, null)


@native(cc="preserve_most")
def trace_graph_return(probe: ptr[Probe], ip: u64, parent_ip: u64, regs: ptr[pt_regs], data: ptr[u64]) -> void:
    leave(probe, ip, regs.ax, current(), data)


FUNCTIONS = (trace_graph_entry, enter, trace_graph_return, leave)
