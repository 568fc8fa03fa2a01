"""The slow path of a hit: every case that the fast trampolines do not handle.

`dispatch_entry` and `dispatch_exit` are called by the trampolines of `ftrace.x86_64.trampolines` with a full pt_regs.
They hold the order of FP-29, FP-31 and FP-37 for fprobes and of FT-42..44 for bare ops.
"""

from __future__ import annotations

from ftrace.hit.asynchronous import in_signal_handler
from ftrace.hit.parking import return_point_for
from ftrace.hit.pools import count_hit, pool_give, pool_take
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
    KPROBE,
    KPROBE_SHARED,
    PYTHON,
    STOPPED,
    UNLOCKED,
    Handler,
    Item,
    Probe,
    ProbeList,
    StubRecord,
)
from ftrace.hit.recursion import CREDIT, FTRACE, INSIDE, LIST, SWITCH, trylock, unlock
from ftrace.hit.rethook import (
    EXIT_FROM_STUB,
    arm,
    disarm,
    drop_above,
    drop_dead,
    entry_ip,
    find_return,
    frame_of,
    is_armed,
    is_deferred,
    newest_call,
    node_data,
    node_fill,
    node_release,
    node_reserve,
    node_return,
    probes_of,
    real_caller,
    word_at,
)
from ftrace.x86_64.stubs import RETURN_POINT, SITE_SIZE
from sandbox.native import (
    Structure,
    addressof,
    atomic_add,
    atomic_or,
    bool_,
    cast,
    extern,
    fn,
    i32,
    load,
    native,
    null,
    ptr,
    signal_fence,
    struct,
    trap,
    u32,
    u64,
    void,
    zeroed,
)
from sandbox.threads.tasks import Node, Task, counters, current, task_get

USER_CS = 0x33
SHARED_BUSY = 1
"""Task.kprobe while a KPROBE_SHARED handler runs and no kprobe is (kprobe_busy_begin)."""

HOOKED, DECLINED, REDIRECTED = 0, 1, 2


@struct
class pt_regs(Structure):
    """The kernel's struct pt_regs for x86-64: 21 words of 8 bytes."""

    r15: u64
    r14: u64
    r13: u64
    r12: u64
    bp: u64
    bx: u64
    r11: u64
    r10: u64
    r9: u64
    r8: u64
    ax: u64
    cx: u64
    dx: u64
    si: u64
    di: u64
    orig_ax: u64
    ip: u64
    cs: u64
    flags: u64
    sp: u64
    ss: u64


call_foreign = extern("ftrace_call_foreign", fn[i32, Handler, u64, u64, u64, u64, u64])
lost_return = extern("ftrace_lost_return", fn[void, u64, u64])


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
    index: u64  # which of the list it is: what it arms in the node if it wants to be told of the return


@native
def call_handler(task: ptr[Task], kind: u32, handler: Handler, fp: u64, ip: u64, ret: u64, regs: u64, data: u64) -> i32:
    if kind & FOREIGN == 0:
        return handler(fp, ip, ret, regs, data)
    saved = task.errno[0]
    result = call_foreign(handler, fp, ip, ret, regs, data)
    task.errno[0] = saved
    return result


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
    """FP-29 from step 3 on: node, entry handler, hook or cancel. A shortage skips only the exit (CHOICE)."""
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
            hit.task, probe.kind, probe.entry, probe.entry_cookie, hit.stub.ip, hit.parent, regs, data
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
    """FPROBE_FL_KPROBE_SHARED: not while a kprobe is running, and no kprobe while it runs (FP-31, FP-35)."""
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
    """A bare ftrace_ops: func(ip, parent_ip, ops, fregs), with no lock of its own (FT-42).

    The native callback of one with HAS_EXIT gets the Hit too, and may take a node for it and arm itself there.
    """
    regs = hit.regs
    regs.cs = USER_CS if hit.probes.wants_regs != 0 else 0
    task = hit.task
    if probe.kind & PYTHON != 0:
        call_handler(task, probe.kind, probe.entry, probe.entry_cookie, hit.stub.ip, hit.parent, cast(u64, regs), 0)
    else:
        whole = cast(u64, hit) if probe.kind & HAS_EXIT != 0 else 0
        call_handler(task, probe.kind, probe.entry, hit.stub.ip, hit.parent, probe.entry_cookie, cast(u64, regs), whole)
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
    if probe.kind & PYTHON != 0 and in_signal_handler():
        line.missed_context += 1
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
    if probe.flags & FILTERED == 0 or passes_filter(task, probe):
        if probe.kind & KPROBE_SHARED != 0:
            run_shared(hit, item, index)
        else:
            count_hit(task, probe)
            run_entry(hit, item, index)
    unlock(task, bit)


@native
def run_list(hit: ptr[Hit]) -> void:
    """A single probe is called directly; several, or one that asks for it, under the LIST lock (FT-42..44)."""
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
    """Fill the node or give it back, and say how the stub is to go on."""
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
        node.armed = 3 if hit.armed > 1 else 1  # as many bits as tell one from several
    if moved or hit.stub.after_prologue != 0 or hit.return_point != return_point:
        word_at(hit.frame)[0] = hit.return_point + EXIT_FROM_STUB
        return REDIRECTED if moved else DECLINED
    return HOOKED


@native
def dispatch_entry(task: ptr[Task], probes: ptr[ProbeList], regs: ptr[pt_regs], return_point: u64, outer: u32) -> u32:
    """Run a site's probes. `outer`: what `rec` was before this hit; it is restored."""
    stub = cast(ptr[StubRecord], return_point - RETURN_POINT)
    if stub.after_prologue != 0:
        regs.sp = regs.bp + 8
    hit: Hit = zeroed
    hit.task = task
    hit.probes = probes
    hit.regs = regs
    hit.stub = stub
    hit.frame = regs.sp
    hit.parent = word_at(hit.frame)[0]
    hit.node = null
    hit.return_point = 0
    hit.armed = 0
    hit.interrupted = outer & (CREDIT | SWITCH) != 0
    if outer == 0:
        task.list = cast(u32, cast(u64, probes))
    signal_fence()
    task.rec = outer & ~cast(u32, CREDIT) | INSIDE
    regs.ip = stub.ip + SITE_SIZE
    if outer == 0:
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
    """The entry handler of a fast hit, whose return slot is at `frame`, returned non-zero: undo the hook (FP-34)."""
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
    outer = task.rec
    outer_list = task.list
    task.rec = outer & ~cast(u32, CREDIT) | INSIDE
    task.list = 0
    signal_fence()
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


@native
def run_return_callback(node: ptr[Node], item: ptr[Item], regs: u64, caller: u64) -> void:
    """The exit half of a callback, with no lock of its own: its handlers. It gives back later (rethook.give_back)."""
    data = node_data(node, probes_of(node)) + cast(u64, item.data)
    item.probe.exit(item.probe.exit_cookie, entry_ip(node), caller, regs, data)


@native
def run_exit(task: ptr[Task], node: ptr[Node], item: ptr[Item], regs: ptr[pt_regs], caller: u64) -> void:
    """FP-37: disabled, stopped; the recursion lock, which kretprobes do without (KP-79); the handler."""
    probe = item.probe
    if probe.kind & CALLBACK != 0:
        run_return_callback(node, item, cast(u64, regs), caller)
        return
    line = counters(task, item.counters)
    if probe.flags & (DISABLED | STOPPED) != 0:
        return
    unlocked = probe.kind & KPROBE != 0
    bit: u32 = 0 if unlocked else trylock(task, FTRACE)
    if bit == 0 and not unlocked:
        line.missed_recursion += 1
        return
    data: u64 = 0
    if item.data_size != 0:
        data = node_data(node, probes_of(node)) + cast(u64, item.data)
    call_handler(task, probe.kind, probe.exit, probe.exit_cookie, entry_ip(node), caller, cast(u64, regs), data)
    unlock(task, bit)


@native
def run_exits(task: ptr[Task], node: ptr[Node], regs: ptr[pt_regs]) -> void:
    """The armed probes' exit handlers, most recently hooked first (RH-11)."""
    probes = probes_of(node)
    caller = regs.ip
    index: u32 = probes.count
    while index > 0:
        index -= 1
        if is_armed(node, index):
            run_exit(task, node, addressof(probes.items[index]), regs, caller)


@native(noinline=True)
def dispatch_exit(regs: ptr[pt_regs], frame: u64, stub: u64) -> u64:
    """Run the exit handlers of the call that returned into `stub`; the result is where it goes on."""
    task = current()
    outer = task.rec
    outer_list = task.list
    task.rec = outer & ~cast(u32, CREDIT) | INSIDE
    signal_fence()
    task.list = 0
    node = newest_call(task)
    if frame_of(node) != frame or node.stub != stub or is_deferred(node):
        node = find_return(task, frame, stub)
        if node == null:
            lost_return(stub, frame)
            trap()
    if outer == 0:
        task.list = cast(u32, node.probes)
    regs.ip = real_caller(node)
    run_exits(task, node, regs)
    parent = node.parent
    word_at(frame)[0] = parent  # for unwinders, which will not find the node any more
    signal_fence()
    node_return(task, node)
    signal_fence()
    task.list = outer_list
    task.rec = outer
    return parent
