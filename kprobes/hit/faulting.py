"""Faults of probed instructions and of handlers: where they are reported, and which fault_handlers are called."""

from __future__ import annotations

from ftrace.hit.x86_64.pt_regs import pt_regs
from kprobes.hit.attribution import note_handler
from kprobes.hit.calling import call, into_detour, python_barred, regs_from, regs_to
from kprobes.hit.control import ON_FRAME, finish, get_kprobe_ctlblk, start
from kprobes.hit.dispatch import back_to_outer, children_of, count_misses, enter, leave
from kprobes.hit.emulate import load_word
from kprobes.hit.records import (
    FAULT_CALLBACK,
    FAULT_DUE,
    FAULT_FOREIGN,
    FAULT_PYTHON,
    FAULTING,
    HANDLER_FAULT_DUE,
    HIT_ACTIVE,
    HIT_SSDONE,
    OFF,
    REENTER,
    Child,
    PlaceRecord,
    find_record,
    find_slot,
)
from sandbox.native import *
from sandbox.threads.signals import ucontext
from sandbox.threads.system_calls import set_signal_mask
from sandbox.threads.tasks import ASYNCHRONOUS, Task, current

no_access = extern("kprobe_no_access", fn[void])
"""The address at which kprobe_load and kprobe_store continue after a fault."""


@native
def run_fault(task: ptr[Task], child: ptr[Child], regs: ptr[pt_regs], trap: u64) -> bool_:
    """Call one child's fault_handler. Returns whether it handled the fault."""
    code = cast(u64, child.fault)
    if code == 0:
        return False
    if child.kind & FAULT_FOREIGN == 0:
        return child.fault(child.fault_cookie, cast(u64, regs), trap) != 0
    if child.kind & FAULT_PYTHON == 0:
        return call(task, code, child.fault_cookie, cast(u64, regs), trap, 0) != 0
    if python_barred(regs):
        return False
    if child.kind & FAULT_CALLBACK != 0:
        return call(task, code, child.fault_cookie, cast(u64, regs), trap, 0) != 0
    return call(task, code, child.fault_cookie, trap, 0, cast(u64, regs)) != 0


@native
def run_faults(task: ptr[Task], record: ptr[PlaceRecord], regs: ptr[pt_regs]) -> bool_:
    """Call the children's fault_handlers, newest first, until one handles the fault. While they run, a kprobe is running."""
    kcb = get_kprobe_ctlblk(task)
    outer = task.kprobe
    outer_status = kcb.status
    outer_frame = kcb.frame
    outer_child = kcb.child
    here: array[u64, 1] = zeroed
    start(task, cast(u64, record), cast(u64, addressof(here[0])))
    kcb.status = FAULTING
    children = children_of(record)
    handled = False
    for index in range(children.count):
        child = children.children[index]
        if not handled and child.flags & OFF == 0:
            kcb.child = cast(u64, child)
            handled = run_fault(task, child, regs, kcb.fault_trap)
    if outer_status == FAULT_DUE:
        finish(task)
    else:
        task.kprobe = outer
        kcb.status = outer_status
        kcb.frame = outer_frame
        kcb.child = outer_child
    return handled


@native
def end_of_step(task: ptr[Task], record: ptr[PlaceRecord], context: ptr[ucontext]) -> void:
    """A fault has ended the step: reset the state, or restore the outer hit's."""
    kcb = get_kprobe_ctlblk(task)
    if kcb.stepping != cast(u64, record):
        return
    context.mask = kcb.step_mask
    if kcb.status == REENTER:
        back_to_outer(task)
    else:
        kcb.stepping = 0
        finish(task)


@native
def run_faults_on_frame(task: ptr[Task], record: ptr[PlaceRecord], context: ptr[ucontext]) -> bool_:
    """Call native fault_handlers, on the signal's frame."""
    set_signal_mask(context.mask)  # as before the step: a handler that crashes does not return to this frame
    regs: pt_regs = zeroed
    regs_from(context, addressof(regs))
    here: array[u64, 1] = zeroed
    before = enter(task, addressof(here[0]))
    handled = run_faults(task, record, addressof(regs))
    leave(task, before)
    if handled:
        regs_to(addressof(regs), context)
    return handled


@native
def run_faults_in_detour(task: ptr[Task], record: ptr[PlaceRecord], context: ptr[ucontext]) -> void:
    """Send the thread to the place's detour, where other fault_handlers are called."""
    kcb = get_kprobe_ctlblk(task)
    kcb.step_mask = context.mask
    context.mask |= ASYNCHRONOUS
    kcb.status = FAULT_DUE
    kcb.stepping = cast(u64, record)
    context.ip = record.detour


@native
def copy_fault(task: ptr[Task], record: ptr[PlaceRecord], context: ptr[ucontext]) -> bool_:
    """A probed instruction has faulted in its copy: handlers and later consumers see the fault at the original address."""
    context.ip = record.address
    if task == null:
        return False
    kcb = get_kprobe_ctlblk(task)
    end_of_step(task, record, context)
    passed = kcb.fault_passed == cast(u64, record)
    kcb.fault_passed = 0
    has_fault = children_of(record).has_fault
    if passed or has_fault == 0 or task.kprobe != 0:
        return False
    kcb.fault_trap = context.trap_number
    if has_fault == 1:
        return run_faults_on_frame(task, record, context)
    run_faults_in_detour(task, record, context)
    return True


@native
def run_python_fault_in_detour(task: ptr[Task], record: ptr[PlaceRecord], context: ptr[ucontext]) -> bool_:
    """Send the thread to the place's detour to call a Python fault_handler, below the faulted handler's stack frame."""
    kcb = get_kprobe_ctlblk(task)
    passed = kcb.fault_passed == cast(u64, record)
    kcb.fault_passed = 0
    if passed or record.detour == 0:
        return False
    kcb.fault_trap = context.trap_number
    kcb.fault_ip = context.ip
    kcb.status |= HANDLER_FAULT_DUE
    into_detour(context, record, context.ip)
    return True


@native
def handler_fault_in_detour(task: ptr[Task], record: ptr[PlaceRecord], regs: ptr[pt_regs]) -> void:
    """Call the Python fault_handler of a faulted handler. If it does not handle the fault, the fault is repeated."""
    kcb = get_kprobe_ctlblk(task)
    kcb.status &= ~cast(u32, HANDLER_FAULT_DUE)
    child = cast(ptr[Child], kcb.child)
    count_misses(children_of(record))
    regs.ip = kcb.fault_ip
    kcb.child = 0
    mask: u64 = 0
    if kcb.trap == ON_FRAME:  # the interpreter runs with the signal mask of the interrupted code
        mask = set_signal_mask(kcb.trap_mask)
    handled = run_fault(task, child, regs, kcb.fault_trap)
    if kcb.trap == ON_FRAME:
        set_signal_mask(mask)
    kcb.child = cast(u64, child)
    if not handled:
        kcb.fault_passed = cast(u64, record)


@native
def handler_fault(task: ptr[Task], context: ptr[ucontext]) -> bool_:
    """A fault in a handler: call the fault_handler of the same probe, with the registers of the fault."""
    kcb = get_kprobe_ctlblk(task)
    child = cast(ptr[Child], kcb.child)
    status = kcb.status
    if child == null or (status != HIT_ACTIVE and status != HIT_SSDONE):
        return False
    if cast(u64, child.fault) == 0:
        return False
    if child.kind & FAULT_PYTHON != 0:
        return run_python_fault_in_detour(task, cast(ptr[PlaceRecord], task.kprobe), context)
    count_misses(children_of(cast(ptr[PlaceRecord], task.kprobe)))
    regs: pt_regs = zeroed
    regs_from(context, addressof(regs))
    kcb.child = 0
    handled = run_fault(task, child, addressof(regs), context.trap_number)
    kcb.child = cast(u64, child)
    if handled:
        regs_to(addressof(regs), context)
    return handled


@native
def emulated_access(context: ptr[ucontext]) -> bool_:
    """A memory access of an emulated instruction has faulted: continue at `no_access`."""
    if context.ip < cast(u64, load_word) or context.ip >= cast(u64, no_access):
        return False
    context.ip = cast(u64, no_access)
    return True


@native
def is_handled(task: ptr[Task], context: ptr[ucontext]) -> bool_:
    """Call the fault_handlers that apply. Returns whether one handled the fault."""
    record = find_slot(context.ip)
    if record != null and (context.ip == record.slot or context.ip == record.boosted):
        return copy_fault(task, record, context)
    copied = find_record(context.ip)
    if copied != null and context.ip != copied.address:
        return copy_fault(task, copied, context)
    return task != null and task.kprobe != 0 and handler_fault(task, context)


@native
def kprobe_fault(signal: u32, info: u64, context: ptr[ucontext]) -> bool_:
    """The first consumer of the synchronous fault signals."""
    task = current()
    if emulated_access(context) or is_handled(task, context):
        return True
    if task != null:
        note_handler(task)
    return False
