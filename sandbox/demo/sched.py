"""Who runs: the tasks of the demo, its scheduler, and the timer interrupt."""

from __future__ import annotations

from sandbox.demo.structures import TASKS, Rq, Task, jiffies, task_owner, tasks
from sandbox.native import *

PARKED = 1
SLICE = 3000
HARDIRQ = 1 << 16

start_kernel = extern("start_kernel", fn[void, ptr[Task]])
calc_global_load = extern("calc_global_load", fn[void, ptr[Task]])


# This and get_current are called from everywhere, under the very functions that one wants to watch: notrace.
@native(notrace=True)
def current_nr() -> u64:
    """The number of the task that this thread runs as; 0 outside demo_main."""
    me = read_fs(0)
    for nr in range(1, TASKS):
        if load(addressof(task_owner[nr])) == me:
            return nr
    return 0


@native(notrace=True)
def get_current() -> ptr[Task]:
    """The current task. Task 0 is set up at its first use."""
    nr = current_nr()
    task = addressof(tasks[nr])
    if nr == 0 and task.root == null:
        start_kernel(task)
    return task


@native
def copy_process(previous: u64) -> u64:
    """Takes a free task for this thread, waiting for one if need be; its number.

    A thread that runs as a task already (a signal handler inside demo_main) parks that one.
    """
    me = read_fs(0)
    nr: u64 = 1
    while not atomic_cas(addressof(task_owner[nr]), 0, me, "acquire"):
        nr += 1
        if nr == TASKS:
            pause()
            nr = 1
    if previous != 0:
        store(addressof(task_owner[previous]), PARKED, "release")
    return nr


@native
def do_exit(nr: u64, previous: u64) -> void:
    """Gives the task back, and continues as the one that was parked for it."""
    if previous != 0:
        store(addressof(task_owner[previous]), read_fs(0), "release")
    store(addressof(task_owner[nr]), 0, "release")


# Four entities; the one with the least vruntime (the first of equals) runs next.


@native
def sched_init(rq: ptr[Rq]) -> void:
    rq.curr = 0
    rq.nr_switches = 0
    for i in range(4):
        rq.entities[i].vruntime = 0
        rq.entities[i].weight = 512 * (i + 1)


@native
def update_curr(rq: ptr[Rq], delta: u64) -> void:
    """Charges the running entity: the lighter it is, the more."""
    entity = addressof(rq.entities[rq.curr])
    entity.vruntime += delta * 1024 // entity.weight


@native
def pick_next_task(rq: ptr[Rq]) -> u32:
    best: u32 = 0
    for i in range(cast(u32, 1), 4):
        if rq.entities[i].vruntime < rq.entities[best].vruntime:
            best = i
    return best


@native
def __schedule(rq: ptr[Rq], delta: u64) -> void:
    update_curr(rq, delta)
    next = pick_next_task(rq)
    if next != rq.curr:
        rq.nr_switches += 1
        rq.curr = next


@native
def schedule() -> u32:
    """Gives the processor away after a slice; who has it now."""
    rq = addressof(get_current().rq)
    __schedule(rq, SLICE)
    return rq.curr


@native
def tick_periodic(task: ptr[Task]) -> void:
    atomic_add(addressof(jiffies), 1, "relaxed")
    task.ticks += 1
    calc_global_load(task)


@native
def asm_sysvec_apic_timer_interrupt() -> void:
    """The interrupt's way in: counts the nesting, ticks, and reschedules when it leaves the last."""
    task = get_current()
    outside = task.preempt_count
    task.preempt_count = outside + HARDIRQ
    tick_periodic(task)
    task.preempt_count = outside
    if outside == 0:
        schedule()
