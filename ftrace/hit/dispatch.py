"""The slow path of an entry: every case that the fast trampolines do not handle.

`dispatch_entry` is called by the trampolines of `ftrace.hit.x86_64.trampolines` with a full pt_regs. The order of events is that
of the kernel's fprobe_handler() for fprobes and of arch_ftrace_ops_list_func() for bare ops.

The multi-probe trampolines (ftrace.hit.x86_64.multi_probe_trampolines) call `multi_probe_one` and `multi_probe_cancel`: they do
for each probe what the single-probe trampolines do, under the locks of the list and of callbacks. The slow path takes and
releases these locks for each probe, which is most of its cost.
"""

from __future__ import annotations

from ftrace.hit.asynchronous import in_signal_handler, in_sub_interpreter_now
from ftrace.hit.left_hits import begin_hit, forget_left
from ftrace.hit.nodes import EXIT_FROM_STUB, arm, disarm, node_data, probes_of, word_at
from ftrace.hit.parking import return_point_for
from ftrace.hit.pools import count_hit, give_credit, pool_give, pool_take
from ftrace.hit.records import (
    ARMED_IN_NODE,
    ASSIST,
    CALLBACK,
    DISABLED,
    EXHAUSTED,
    FILTERED,
    FOREIGN,
    HAS_ENTRY,
    HAS_EXIT,
    KPROBE_SHARED,
    PYTHON,
    SHARED_BUSY,
    STOPPED,
    UNLOCKED,
    Handler,
    Item,
    Probe,
    ProbeList,
    StubRecord,
)
from ftrace.hit.recursion import CREDIT, FAST, FTRACE, INSIDE, LIST, LIST_NORMAL, SWITCH, trylock, unlock
from ftrace.hit.rethook import drop_above, drop_dead, node_fill, node_release, node_reserve
from ftrace.hit.x86_64.pt_regs import USER_CS, pt_regs
from ftrace.hit.x86_64.stubs import RETURN_POINT, SITE_SIZE
from sandbox.native import *
from sandbox.threads.tasks import Node, Task, counters, current, task_get

HOOKED, DECLINED, REDIRECTED = 0, 1, 2


@struct
class Hit(Structure):
    """One entry being dispatched."""

    task: ptr[Task]
    probes: ptr[ProbeList]
    regs: ptr[pt_regs]
    stub: ptr[StubRecord]
    frame: u64  # address of the return slot, whatever a handler makes of regs.sp
    parent: u64
    node: ptr[Node]  # reserved for this call, or null
    armed: u64  # how many probes wait for the return
    interrupted: bool_
    return_point: u64  # of the stub that the call returns into, once there is a node
    item: ptr[Item]  # whose callback is running
    index: u64  # its position in the list: the bit that it sets in the node to be called at the return


@native
def passes_filter(task: ptr[Task], probe: ptr[Probe]) -> bool_:
    """The thread filter and max_hits; the hit that uses up the limit still counts."""
    if probe.thread != 0 and probe.thread != task.tid:
        return False
    if probe.max_hits == 0:
        return True
    left = atomic_add(addressof(probe.hits_left), -1, "relaxed")
    if left == 1:
        atomic_or(addressof(probe.flags), EXHAUSTED, "relaxed")
    return left > 0


@native
def hit_reserve(hit: ptr[Hit]) -> bool_:
    """A place on the shadow stack for this call, unless it has one."""
    if hit.node != null:
        return True
    own = cast(u64, hit.stub) + RETURN_POINT
    hit.return_point = return_point_for(hit.task, hit.frame, own)
    if hit.return_point == 0:
        return False
    hit.node = node_reserve(hit.task, hit.probes)
    if hit.node == null:
        return False
    hit.node.parent = hit.parent
    hit.node.frame = hit.frame
    hit.node.record = cast(u64, hit.stub)
    return True


@native
def take_node(hit: ptr[Hit], item: ptr[Item], index: u64) -> bool_:
    """A return node for this probe and a place on the shadow stack for this call, or a counted miss."""
    line = counters(hit.task, item.counters)
    if item.probe.flags & STOPPED != 0:
        line.missed_nodes += 1
        return False
    if not hit_reserve(hit):
        line.missed_depth += 1
        return False
    if not pool_take(hit.task, item.probe, hit.interrupted):
        line.missed_nodes += 1
        return False
    arm(hit.node, index)
    return True


@native
def run_entry(hit: ptr[Hit], item: ptr[Item], index: u64) -> void:
    """The rest of fprobe_handler(): node, entry handler, hook or cancel. A shortage of nodes skips only the exit."""
    probe = item.probe
    taken = False
    data: u64 = 0
    if probe.kind & HAS_EXIT != 0:
        taken = take_node(hit, item, index)
        if probe.flags & STOPPED != 0:
            return
        if taken and item.data_size != 0:
            data = node_data(hit.node, hit.probes) + cast(u64, item.data)
    result: i32 = 0
    if probe.kind & HAS_ENTRY != 0:
        regs = cast(u64, hit.regs)
        result = call_handler(
            hit.task, hit.probes, probe, False, probe.entry_cookie, hit.stub.ip, hit.parent, regs, data
        )
    if not taken:
        return
    if result != 0:
        disarm(hit.node, index)
        pool_give(hit.task, probe)
    else:
        hit.armed += 1


@native
def run_shared(hit: ptr[Hit], item: ptr[Item], index: u64) -> void:
    """FPROBE_FL_KPROBE_SHARED: not while a kprobe is running, and no kprobe while it runs."""
    task = hit.task
    if task.kprobe != 0:
        counters(task, item.counters).missed_busy += 1
        return
    count_hit(task, item.probe)
    task.kprobe = SHARED_BUSY
    run_entry(hit, item, index)
    task.kprobe = 0


@native
def run_callback(hit: ptr[Hit], probe: ptr[Probe]) -> void:
    """A bare ftrace_ops: func(ip, parent_ip, ops, fregs), with no lock of its own.

    The native callback of one with HAS_EXIT gets the Hit too, and may take a node for it and arm itself there.
    """
    regs = hit.regs
    regs.cs = USER_CS if hit.probes.wants_regs != 0 else 0
    task = hit.task
    if probe.kind & PYTHON != 0:
        call_handler(task, hit.probes, probe, False, probe.entry_cookie, hit.stub.ip, hit.parent, cast(u64, regs), 0)
    else:
        whole = cast(u64, hit) if probe.kind & HAS_EXIT != 0 else 0
        call_handler(
            task, hit.probes, probe, False, hit.stub.ip, hit.parent, probe.entry_cookie, cast(u64, regs), whole
        )
    regs.cs = USER_CS


@native
def run_probe(hit: ptr[Hit], item: ptr[Item], index: u64) -> void:
    task = hit.task
    probe = item.probe
    line = counters(task, item.counters)
    if probe.flags & (DISABLED | EXHAUSTED) != 0:
        return
    if probe.flags & STOPPED != 0 and probe.kind & (CALLBACK | HAS_EXIT) != HAS_EXIT:
        return  # unregistered by a handler that ran before it in this hit (FP-47); those with a pool count a miss (FP-45)
    if probe.kind & PYTHON != 0 and in_signal_handler(hit.regs):
        line.missed_context += 1
        return
    if probe.kind & PYTHON != 0 and in_sub_interpreter_now():
        line.missed_interpreter += 1
        return
    if probe.kind & CALLBACK != 0:
        count_hit(task, probe)
        hit.item = item
        hit.index = index
        run_callback(hit, probe)
        return
    unlocked = probe.kind & UNLOCKED != 0
    bit: u32 = 0 if unlocked else trylock(task, FTRACE)
    if bit == 0 and not unlocked:
        line.missed_recursion += 1
        return
    # A hit that the filter passes over is none: it may not count as a kprobe's recursion, nor mark the thread as in a kprobe.
    if probe.flags & FILTERED == 0 or passes_filter(task, probe):
        if probe.kind & KPROBE_SHARED != 0:
            run_shared(hit, item, index)
        else:
            count_hit(task, probe)
            run_entry(hit, item, index)
    unlock(task, bit)


@native
def run_list(hit: ptr[Hit]) -> void:
    """Call a single probe directly; several probes, or one with ASSIST, under the LIST lock."""
    task = hit.task
    probes = hit.probes
    if probes.count == 1 and probes.items[0].probe.kind & ASSIST == 0:
        run_probe(hit, addressof(probes.items[0]), 0)
        return
    bit = trylock(task, LIST)
    if bit == 0:
        return
    for index in range(probes.count):
        run_probe(hit, addressof(probes.items[index]), cast(u64, index))
    unlock(task, bit)


@native
def settle(hit: ptr[Hit], return_point: u64) -> u32:
    """Fill the node or release it; returns how the stub continues."""
    task = hit.task
    regs = hit.regs
    moved = regs.ip != hit.stub.ip + SITE_SIZE
    if hit.armed == 0:
        if hit.node != null:
            node_release(task, hit.node)
        return REDIRECTED if moved else DECLINED
    node = hit.node
    node_fill(task, node, hit.frame, word_at(hit.frame)[0], hit.return_point)
    if hit.probes.count > ARMED_IN_NODE:
        node.armed = 3 if hit.armed > 1 else 1  # as many bits as distinguish one from several
    if moved or hit.stub.after_prologue != 0 or hit.return_point != return_point:
        word_at(hit.frame)[0] = hit.return_point + EXIT_FROM_STUB
        return REDIRECTED if moved else DECLINED
    return HOOKED


@native(inline=True)
def set_up(hit: ptr[Hit], task: ptr[Task], probes: ptr[ProbeList], regs: ptr[pt_regs], stub: ptr[StubRecord]) -> void:
    """Describe a hit that no probe has run in."""
    hit.task = task
    hit.probes = probes
    hit.regs = regs
    hit.stub = stub
    hit.frame = regs.sp
    hit.parent = word_at(hit.frame)[0]
    hit.node = null
    hit.return_point = 0
    hit.armed = 0


@native
def dispatch_entry(task: ptr[Task], probes: ptr[ProbeList], regs: ptr[pt_regs], return_point: u64, outer: u32) -> u32:
    """Run a site's probes. `outer`: what `rec` was before this hit; it is restored."""
    stub = cast(ptr[StubRecord], return_point - RETURN_POINT)
    if stub.after_prologue != 0:
        regs.sp = regs.bp + 8
    hit: Hit = zeroed
    set_up(addressof(hit), task, probes, regs, stub)
    hit.interrupted = outer & (CREDIT | SWITCH) != 0
    here: array[u64, 1] = zeroed
    begin_hit(task, outer, addressof(here[0]))
    regs.ip = stub.ip + SITE_SIZE
    if outer == 0:
        task.list = cast(u32, cast(u64, probes))
        task.serial += 1
        drop_dead(task, hit.frame)
    else:
        task.nested += 1
    run_list(addressof(hit))
    result = settle(addressof(hit), return_point)
    signal_fence()
    if outer == 0:
        task.list = 0
    task.rec = outer
    return result


@native
def ftrace_cancel(task: ptr[Task], frame: u64) -> void:
    """The entry handler of a fast hit, whose return slot is at `frame`, returned non-zero: undo the hook."""
    drop_above(task, frame)
    node = task.top
    pool_give(task, probes_of(node).items[0].probe)
    signal_fence()
    node_release(task, node)
    signal_fence()
    task.list = 0
    task.rec = 0


@native(noinline=True)
def dispatch_slow(regs: ptr[pt_regs], return_point: u64) -> u32:
    """A hit in a thread that has no task yet, or in one that is in tracing code already."""
    task = task_get()
    stub = cast(ptr[StubRecord], return_point - RETURN_POINT)
    if task == null:
        count_without_task(load(stub.slot, "acquire"))
        return DECLINED
    if task.rec != 0:
        forget_left(task, regs.sp)
    outer = task.rec
    outer_list = task.list
    here: array[u64, 1] = zeroed
    begin_hit(task, outer, addressof(here[0]))
    task.list = 0
    result = dispatch_entry(task, load(stub.slot, "acquire"), regs, return_point, outer)
    if outer != 0:
        task.list = outer_list
    return result


@native
def count_without_task(probes: ptr[ProbeList]) -> void:
    for index in range(probes.count):
        probe = probes.items[index].probe
        if probe.flags & (DISABLED | EXHAUSTED) == 0:
            atomic_add(addressof(probe.missed_task), 1, "relaxed")


call_foreign = extern("ftrace_call_foreign", fn[i32, Handler, u64, u64, u64, u64, u64])
call_foreign_return = extern("ftrace_call_foreign_return", fn[i32, Handler, u64, u64, u64, u64, u64])
call_foreign_preserving = extern("ftrace_call_foreign_preserving", fn[i32, Handler, u64, u64, u64, u64, u64])


@native(inline=True)
def call_handler(
    task: ptr[Task],
    probes: ptr[ProbeList],
    probe: ptr[Probe],
    at_return: bool_,
    fp: u64,
    ip: u64,
    ret: u64,
    regs: u64,
    data: u64,
) -> i32:
    """A probe's handler of entries or, `at_return`, of returns, where a long double may be on the x87 stack."""
    handler = probe.exit if at_return else probe.entry
    if probe.kind & FOREIGN == 0:
        return handler(fp, ip, ret, regs, data)
    saved = task.errno[0]
    result: i32 = 0
    if probes.preserving != 0:
        result = call_foreign_preserving(handler, fp, ip, ret, regs, data)
    elif at_return:
        result = call_foreign_return(handler, fp, ip, ret, regs, data)
    else:
        result = call_foreign(handler, fp, ip, ret, regs, data)
    task.errno[0] = saved
    return result


MULTI_PROBE = FAST | LIST_NORMAL
"""The value of `rec` while the entry handlers of several probes run."""


@native
def multi_probe_one(task: ptr[Task], node: ptr[Node], item: ptr[Item], regs: ptr[pt_regs]) -> void:
    """The slow path for one probe that is not plain: disabled, being unregistered, or without a credit."""
    hit: Hit = zeroed
    hit.task = task
    hit.probes = probes_of(node)
    hit.regs = regs
    hit.stub = cast(ptr[StubRecord], node.stub - RETURN_POINT)
    hit.frame = node.frame
    hit.parent = node.parent
    hit.node = node
    task.rec = INSIDE | LIST_NORMAL
    signal_fence()
    first = cast(u64, addressof(hit.probes.items[0]))
    run_probe(addressof(hit), item, (cast(u64, item) - first) // sizeof(Item))
    signal_fence()
    task.rec = MULTI_PROBE


@native
def multi_probe_cancel(task: ptr[Task], node: ptr[Node], item: ptr[Item]) -> void:
    """The entry handler of a probe with an exit handler returned non-zero."""
    node.armed &= ~item.bit
    give_credit(task, item.probe)


@native
def saved_vectors() -> u64:
    """The address of the running thread's saved vector registers | their distance in units of 16 bytes; 0: not saved."""
    task = current()
    return task.vectors if task != null else 0
