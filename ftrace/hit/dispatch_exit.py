"""The slow path of a return: every case that the fast exit trampolines do not handle.

`dispatch_exit` is called by the trampolines of `ftrace.hit.x86_64.trampolines` with a full pt_regs. The order of events is that
of the kernel's fprobe_exit_handler() and rethook_trampoline_handler().
"""

from __future__ import annotations

from ftrace.hit.adopted_calls import adopt, is_last, return_without_record
from ftrace.hit.asynchronous import in_sub_interpreter_now
from ftrace.hit.dispatch import call_handler
from ftrace.hit.left_hits import begin_hit, forget_left
from ftrace.hit.nodes import entry_ip, frame_of, is_armed, is_deferred, node_data, probes_of, real_caller, word_at
from ftrace.hit.parking import slot_of
from ftrace.hit.records import CALLBACK, DISABLED, KPROBE, PYTHON, STOPPED, Item
from ftrace.hit.recursion import FTRACE, trylock, unlock
from ftrace.hit.rethook import find_return, newest_call, node_return
from ftrace.hit.x86_64.pt_regs import pt_regs
from sandbox.native import *
from sandbox.threads.tasks import Node, Task, counters, task_get


@native
def run_return_callback(node: ptr[Node], item: ptr[Item], regs: u64, caller: u64) -> void:
    """The exit half of a callback, without a lock: its handlers. Its nodes are released later (rethook.give_back)."""
    data = node_data(node, probes_of(node)) + cast(u64, item.data)
    item.probe.exit(item.probe.exit_cookie, entry_ip(node), caller, regs, data)


@native
def run_exit(task: ptr[Task], node: ptr[Node], item: ptr[Item], regs: ptr[pt_regs], caller: u64) -> void:
    """As fprobe_exit_handler(): disabled or stopped; the recursion lock, which kretprobes do without; the handler."""
    probe = item.probe
    if probe.kind & CALLBACK != 0:
        run_return_callback(node, item, cast(u64, regs), caller)
        return
    line = counters(task, item.counters)
    if probe.flags & (DISABLED | STOPPED) != 0:
        return
    if probe.kind & PYTHON != 0 and in_sub_interpreter_now():  # the call itself has changed the interpreter
        line.missed_interpreter += 1
        return
    unlocked = probe.kind & KPROBE != 0
    bit: u32 = 0 if unlocked else trylock(task, FTRACE)
    if bit == 0 and not unlocked:
        line.missed_recursion += 1
        return
    data: u64 = 0
    if item.data_size != 0:
        data = node_data(node, probes_of(node)) + cast(u64, item.data)
    call_handler(task, probes_of(node), probe, True, probe.exit_cookie, entry_ip(node), caller, cast(u64, regs), data)
    unlock(task, bit)


@native
def run_exits(task: ptr[Task], node: ptr[Node], regs: ptr[pt_regs]) -> void:
    """The armed probes' exit handlers, most recently hooked first."""
    probes = probes_of(node)
    caller = regs.ip
    index: u32 = probes.count
    while index > 0:
        index -= 1
        if is_armed(node, index):
            run_exit(task, node, addressof(probes.items[index]), regs, caller)


@native(noinline=True)
def dispatch_exit(regs: ptr[pt_regs], frame: u64, stub: u64) -> u64:
    """Run the exit handlers of the call that returned into `stub`; returns the address where it continues."""
    task = task_get()
    if task == null:
        return return_without_record(frame, stub)
    if task.rec != 0:
        forget_left(task, frame)
    outer = task.rec
    outer_list = task.list
    here: array[u64, 1] = zeroed
    begin_hit(task, outer, addressof(here[0]))
    task.list = 0
    node = newest_call(task)
    if frame_of(node) != frame or node.stub != stub or is_deferred(node):
        node = find_return(task, frame, stub)
    if node == null or (slot_of(node) == frame and not is_last(task, node)):
        node = find_return(task, frame, stub) if adopt(task, frame, stub) else null
    if node == null:
        parent = return_without_record(frame, stub)
        task.list = outer_list
        task.rec = outer
        return parent
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
