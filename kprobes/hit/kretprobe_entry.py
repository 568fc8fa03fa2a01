"""Kretprobes on the hit path: take an instance and hook the return at entry, call the handler at return.

On an ftrace location, the function's stub hooks the return, and this callback takes its node (ftrace.hit.dispatch.Hit). At a
breakpoint, the address in the return slot is replaced by that of the place's return stub. In both cases the node's entry data
is one word: the list of the call's instances, the latest first.
"""

from __future__ import annotations

from ftrace.hit.dispatch import Hit
from ftrace.hit.nodes import EXIT_FROM_STUB, arm, below, frame_of, is_armed, node_data, probes_of, word_at
from ftrace.hit.parking import EMPTY
from ftrace.hit.records import Probe, ProbeList
from ftrace.hit.recursion import CREDIT, SWITCH
from ftrace.hit.rethook import node_fill, node_reserve
from ftrace.hit.x86_64.pt_regs import pt_regs
from ftrace.hit.x86_64.stubs import EXIT_POINT
from kprobes.hit.calling import call, in_sub_interpreter, python_barred
from kprobes.hit.control import IN_STUB, NO_PREEMPTION, finish, get_kprobe_ctlblk, start
from kprobes.hit.records import (
    PRE_CALLBACK,
    PRE_FOREIGN,
    PRE_PYTHON,
    RETURN_CALLBACK,
    RETURN_FOREIGN,
    RETURN_PYTHON,
    STOPPED,
    Child,
    Instance,
    Kretprobe,
    PlaceRecord,
)
from sandbox.native import *
from sandbox.threads.tasks import NODE, Node, Task, current

hit_reserve = extern("hit_reserve", fn[bool_, ptr[Hit]])
return_point_for = extern("return_point_for", fn[u64, ptr[Task], u64, u64])
drop_dead = extern("drop_dead", fn[void, ptr[Task], u64])
pool_take = extern("pool_take", fn[bool_, ptr[Task], ptr[Probe], bool_])
return_handler = extern("kprobe_return_handler", fn[i32, u64, u64, u64, ptr[pt_regs], u64])
pool_give = extern("pool_give", fn[void, ptr[Task], ptr[Probe]])


@struct
class Hook(Structure):
    """State that the kretprobes of one call share: at an ftrace location its Hit, elsewhere the node, once taken."""

    record: ptr[PlaceRecord]
    hit: ptr[Hit]
    node: ptr[Node]
    returns_by_slot: bool_  # the return slot is overwritten; otherwise a jump's call continues in the return stub


# -- instances ----------------------------------------------------------------------------------------------------


@native
def instance_at(rp: ptr[Kretprobe], index: u64) -> ptr[Instance]:
    return cast(ptr[Instance], rp.instances + index * rp.stride)


@native
def take_free(task: ptr[Task], rp: ptr[Kretprobe]) -> ptr[Instance]:
    """A free instance, which is this thread's from now on, or null. Instances that have been freed lately are found first."""
    index = load(addressof(rp.hint), "relaxed")
    for _ in range(rp.count):
        instance = instance_at(rp, index)
        index = index + 1 if index + 1 < rp.count else 0
        if load(addressof(instance.task), "relaxed") == 0 and atomic_cas(
            addressof(instance.task), 0, cast(u64, task.tid), "acq_rel"
        ):
            store(addressof(rp.hint), index, "relaxed")
            return instance
    return null


@native
def take_instance(task: ptr[Task], rp: ptr[Kretprobe], hook: ptr[Hook]) -> ptr[Instance]:
    """A free instance, or null. If a pool counts those in use, the list has an instance for each credit of the pool."""
    kcb = get_kprobe_ctlblk(task)
    if rp.pool != 0:
        interrupted = kcb.entered & (CREDIT | SWITCH) != 0
        if hook.hit != null:
            interrupted = hook.hit.interrupted
        if not pool_take(task, cast(ptr[Probe], rp.pool), interrupted):
            return null
    instance = take_free(task, rp)
    if instance == null and kcb.entered == 0 and recover_instances(task, rp):
        instance = take_free(task, rp)
    if instance == null and rp.pool != 0:
        pool_give(task, cast(ptr[Probe], rp.pool))
    return instance


@native
def is_hooked(task: ptr[Task], instance: ptr[Instance]) -> bool_:
    """Whether a call on the shadow stack has the instance."""
    node = task.top
    while node != task.bottom:
        probes = probes_of(node)
        for index in range(probes.count):
            item = addressof(probes.items[index])
            if node.stub != EMPTY and item.exit == cast(u64, return_handler) and is_armed(node, index):
                held = word_at(node_data(node, probes) + cast(u64, item.data))[0]
                while held != 0:
                    if held == cast(u64, instance):
                        return True
                    held = cast(ptr[Instance], held).next
        node = below(node)
    return False


@native(noinline=True)
def recover_instances(task: ptr[Task], rp: ptr[Kretprobe]) -> bool_:
    """No instance is free. Whether hits of this thread that were left before they hooked their calls had some: free them."""
    state = cast(u64, task.tid) << 32 | task.abandoned & 0xFFFF_FFFF
    if task.abandoned == 0 or rp.recovered == state:
        return False
    rp.recovered = state
    found = False
    for index in range(rp.count):
        instance = instance_at(rp, index)
        if instance.task == cast(u64, task.tid) and not is_hooked(task, instance):
            give_free(rp, instance)
            found = True
    return found


@native
def give_instance(task: ptr[Task], instance: ptr[Instance]) -> void:
    rp = instance.rp
    give_free(rp, instance)
    if rp.pool != 0:
        pool_give(task, cast(ptr[Probe], rp.pool))


@native
def give_free(rp: ptr[Kretprobe], instance: ptr[Instance]) -> void:
    store(addressof(instance.task), 0, "release")
    store(addressof(rp.hint), (cast(u64, instance) - rp.instances) // rp.stride, "relaxed")


@native
def kretprobe_after_fork(rp: ptr[Kretprobe], before: u64, now: u64) -> u64:
    """In the child of a fork: free the instances of other threads. Returns how many remain in use.

    `before`, `now`: native ids of the forking thread.
    """
    in_use: u64 = 0
    for index in range(rp.count):
        instance = instance_at(rp, index)
        if instance.task == before:
            instance.task = now
            in_use += 1
        else:
            instance.task = 0
    return in_use


@native
def clear_data(rp: ptr[Kretprobe], instance: ptr[Instance]) -> void:
    for index in range(rp.data_size + 7 >> 3):
        instance.data[index] = 0


# -- entry --------------------------------------------------------------------------------------------------------


@native
def entry_cancels(task: ptr[Task], rp: ptr[Kretprobe], instance: ptr[Instance], regs: ptr[pt_regs]) -> bool_:
    """Call the entry handler. Returns whether it cancels the return handler for this call."""
    code = cast(u64, rp.entry)
    if code == 0:
        return False
    if rp.kind & PRE_FOREIGN == 0:
        return rp.entry(cast(u64, instance), cast(u64, regs)) != 0
    if rp.kind & PRE_PYTHON == 0 or rp.kind & PRE_CALLBACK != 0:
        return call(task, code, cast(u64, instance), cast(u64, regs), 0, 0) != 0
    return call(task, code, rp.entry_cookie, cast(u64, instance), 0, cast(u64, regs)) != 0


@native
def hook_in_stub(task: ptr[Task], instance: ptr[Instance], hit: ptr[Hit]) -> bool_:
    """Hook the return in the stub of the ftrace location, unless it is hooked already."""
    if not hit_reserve(hit):
        return False
    word = word_at(node_data(hit.node, hit.probes) + cast(u64, hit.item.data))
    instance.ret_addr = hit.parent
    if hit.armed != 0:
        instance.ret_addr = cast(u64, hit.stub) + EXIT_POINT
    instance.next = word[0]
    word[0] = cast(u64, instance)
    arm(hit.node, hit.index)
    hit.armed += 1
    return True


@native
def hook_by_swap(task: ptr[Task], instance: ptr[Instance], hook: ptr[Hook], frame: u64) -> bool_:
    """Hook the return by writing the address of the place's return stub into the return slot."""
    kcb = get_kprobe_ctlblk(task)
    record = hook.record
    slot = word_at(frame)
    instance.ret_addr = slot[0]
    instance.next = 0
    probes = cast(ptr[ProbeList], record.return_list)
    if hook.node == null:
        if kcb.entered == 0:  # otherwise the newest node may not be filled yet
            drop_dead(task, frame)
        return_point = return_point_for(task, frame, record.return_stub)
        if return_point == 0:
            return False
        hook.node = node_reserve(task, probes)
        if hook.node == null:
            return False
        hook.node.record = cast(u64, addressof(record.address))
        node_fill(task, hook.node, frame, slot[0], return_point)
        arm(hook.node, 0)
        slot[0] = return_point + EXIT_FROM_STUB
        hook.returns_by_slot = return_point != record.return_stub
    word = word_at(node_data(hook.node, probes))
    instance.next = word[0]
    word[0] = cast(u64, instance)
    return True


@native
def enter_kretprobe(task: ptr[Task], child: ptr[Child], regs: ptr[pt_regs], hook: ptr[Hook]) -> void:
    """A function with a kretprobe is entered."""
    rp = cast(ptr[Kretprobe], child.rp)
    if rp.kind & (PRE_PYTHON | RETURN_PYTHON) != 0 and python_barred(regs):
        atomic_add(addressof(child.nmissed), 1, "relaxed")
        return
    instance = take_instance(task, rp, hook)
    if instance == null:
        atomic_add(addressof(rp.nmissed), 1, "relaxed")
        return
    clear_data(rp, instance)
    instance.frame = regs.sp
    instance.ret_addr = 0
    if entry_cancels(task, rp, instance, regs):
        give_instance(task, instance)
        return
    hooked = hook_in_stub(task, instance, hook.hit) if hook.hit != null else hook_by_swap(task, instance, hook, regs.sp)
    if not hooked:
        atomic_add(addressof(rp.nmissed), 1, "relaxed")
        give_instance(task, instance)


@native
def kretprobe_in_list(task: ptr[Task], instance: ptr[Instance]) -> void:
    """Fill in an instance that is entry data, not a node: its kretprobe is not the only probe on the function.

    Also called for an instance that is a node, if a signal handler has left newer nodes above it.
    """
    place = cast(u64, instance) - cast(u64, task.bottom)
    if place & (NODE - 1) == 0 and cast(u64, instance) < task.nodes_end:
        return
    node = task.top
    instance.frame = frame_of(node)
    if node.armed & (node.armed - 1) != 0:
        instance.ret_addr = node.record + EXIT_POINT


# -- return -------------------------------------------------------------------------------------------------------


@native
def run_return(task: ptr[Task], instance: ptr[Instance], regs: ptr[pt_regs]) -> void:
    """Call the handler, with its kprobe marked as running."""
    kcb = get_kprobe_ctlblk(task)
    rp = instance.rp
    code = cast(u64, rp.handler)
    if code == 0 or rp.flags & STOPPED != 0:
        return
    here: array[u64, 1] = zeroed
    start(task, cast(u64, rp.child), cast(u64, addressof(here[0])) | IN_STUB | NO_PREEMPTION)
    kcb.child = cast(u64, rp.child)
    task.preempt += 1
    if rp.kind & RETURN_FOREIGN == 0:
        rp.handler(cast(u64, instance), cast(u64, regs))
    elif rp.kind & RETURN_PYTHON == 0:
        call(task, code, cast(u64, instance), cast(u64, regs), 0, 0)
    elif in_sub_interpreter():  # the call itself has changed the interpreter
        atomic_add(addressof(cast(ptr[Child], rp.child).nmissed), 1, "relaxed")
    elif rp.kind & RETURN_CALLBACK != 0:
        call(task, code, cast(u64, instance), cast(u64, regs), 0, 0)
    else:
        call(task, code, rp.cookie, cast(u64, instance), 0, cast(u64, regs))
    task.preempt -= 1
    finish(task)


@native
def kprobe_return_handler(ops: u64, ip: u64, caller: u64, regs: ptr[pt_regs], data: u64) -> i32:
    """A call with kretprobes returns. Without `regs` it only frees the call's instances (later, or if the call never returns);
    `caller` is then the call's task.
    """
    instance = cast(ptr[Instance], word_at(data)[0])
    if regs != null:
        while instance != null:
            run_return(current(), instance, regs)
            instance = cast(ptr[Instance], instance.next)
        return 0
    word_at(data)[0] = 0
    while instance != null:
        following = cast(ptr[Instance], instance.next)
        give_instance(cast(ptr[Task], caller), instance)
        instance = following
    return 0
