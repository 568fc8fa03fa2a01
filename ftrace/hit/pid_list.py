"""Lists of thread ids that hits look into while they change: a bit for each id. kernel/trace/pid_list.c.

New threads join a list that is followed if the thread that makes them is in it, and ending threads leave it, as in
trace_filter_add_remove_task() of kernel/trace/trace_pid.c. A hook on pthread_create notes which lists the calling thread is in,
and sends the new thread through `ftrace_thread_start` (ftrace.hit.x86_64.thread_start): it joins them before its routine begins.
A new thread leaves the lists that it does not join: its id may be that of an ended thread whose end was not noticed.
"""

from __future__ import annotations

from ftrace.hit.records import Probe
from ftrace.hit.recursion import INSIDE
from ftrace.hit.x86_64.pt_regs import pt_regs
from sandbox.native import *
from sandbox.threads.tasks import Task, current, task_get

PIDS = 1 << 22
"""Every thread's id is less: PID_MAX_LIMIT in include/linux/threads.h."""


@struct
class PidList(Structure):
    """Bit i of the bits is set if the thread with the id i is in the set."""

    bits: array[u64, 65536]


@native(inline=True)
def is_listed(pids: ptr[PidList], pid: u64) -> bool_:
    """trace_pid_list_is_set()."""
    return load(addressof(pids.bits[pid >> 6]), "relaxed") >> (pid & 63) & 1 != 0


@native
def trace_pid_list_set(pids: ptr[PidList], pid: u64) -> void:
    atomic_or(addressof(pids.bits[pid >> 6]), cast(u64, 1) << (pid & 63))


@native
def trace_pid_list_clear(pids: ptr[PidList], pid: u64) -> void:
    if is_listed(pids, pid):  # most are not, and their memory has never been touched
        atomic_and(addressof(pids.bits[pid >> 6]), ~(cast(u64, 1) << (pid & 63)))


LISTS = 64
"""Lists that can be followed at the same time: one bit each in Start.listed."""
STARTS = 1024
"""Threads that can be between pthread_create and their routine at the same time; one more is not followed."""
_FREE, _TAKEN = 0, 1


@struct
class Start(Structure):
    """A thread that is being made."""

    state: u64
    routine: u64
    argument: u64
    listed: u64  # bit i: it is to join the i-th list


@struct
class Followers(Structure):
    """The followed lists: where each one's address is found, or 0. Followed by the threads that are being made."""

    lists: array[u64, 64]
    starts: array[Start, 1024]


followers = global_var(u64, 0, name="pid_followers")
"""The address of the process's Followers; 0: no list was ever followed."""
thread_start = extern("ftrace_thread_start", fn[void])


@native(inline=True)
def the_followers() -> ptr[Followers]:
    return cast(ptr[Followers], followers)


@native
def followed_list(index: u64) -> ptr[PidList]:
    """The index-th list as it is now; null if there is none, or none is set."""
    place = load(addressof(the_followers().lists[index]), "acquire")
    if place == 0:
        return null
    return cast(ptr[PidList], load(cast(ptr[u64], place), "acquire"))


@native
def lists_with(pid: u64) -> u64:
    """The followed lists that a thread is in: bit i is the i-th."""
    found: u64 = 0
    for index in range(LISTS):
        pids = followed_list(index)
        if pids != null and is_listed(pids, pid):
            found |= cast(u64, 1) << index
    return found


@native
def trace_filter_add_remove_task(pid: u64, listed: u64) -> void:
    """Have a thread in these of the followed lists, and in none of the others."""
    for index in range(LISTS):
        pids = followed_list(index)
        if pids != null:
            if listed >> index & 1 != 0:
                trace_pid_list_set(pids, pid)
            else:
                trace_pid_list_clear(pids, pid)


@native
def join_lists(task: ptr[Task], listed: u64) -> void:
    """The same for the running thread, as inside a hit: the thread that frees a list waits for it (ftrace.hit.quiesce)."""
    if followers == 0:
        return
    outer = task.rec
    task.rec = outer | INSIDE
    signal_fence()
    trace_filter_add_remove_task(cast(u64, task.tid), listed)
    signal_fence()
    task.rec = outer


@native
def take_start() -> ptr[Start]:
    """A free record, or null."""
    for index in range(STARTS):
        start = cast(ptr[Start], addressof(the_followers().starts[index]))
        if load(addressof(start.state), "relaxed") == _FREE and atomic_cas(
            addressof(start.state), _FREE, _TAKEN, "acq_rel"
        ):
            return start
    return null


@native
def thread_is_made(probe: ptr[Probe], ip: u64, parent_ip: u64, regs: ptr[pt_regs], data: ptr[u64]) -> i32:
    """At pthread_create(thread, attributes, routine, argument). 1: the new thread is not followed."""
    start = take_start()
    if start == null:
        return 1
    start.routine = regs.dx
    start.argument = regs.cx
    start.listed = lists_with(cast(u64, current().tid))
    regs.dx = cast(u64, thread_start)
    regs.cx = cast(u64, start)
    if data == null:
        return 1
    data[0] = cast(u64, start)
    return 0


@native
def thread_was_made(probe: ptr[Probe], ip: u64, parent_ip: u64, regs: ptr[pt_regs], data: ptr[u64]) -> i32:
    """At its return: an error means that no thread will come for the record."""
    if cast(u32, regs.ax) != 0:
        store(addressof(cast(ptr[Start], data[0]).state), _FREE, "release")
    return 0


@native
def followed_thread_begins(start: ptr[Start], argument: ptr[u64]) -> u64:
    """In the new thread: join the lists. Returns the routine, and its argument in `argument`."""
    routine = start.routine
    listed = start.listed
    argument[0] = start.argument
    store(addressof(start.state), _FREE, "release")
    task = task_get()  # whose destructor runs when the thread ends
    if task != null:
        join_lists(task, listed)
    return routine


FUNCTIONS = (
    trace_pid_list_set,
    trace_pid_list_clear,
    lists_with,
    trace_filter_add_remove_task,
    thread_is_made,
    thread_was_made,
    followed_thread_begins,
)
