"""The native runtime: one image with the whole hit path, linked when the first function is traced."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ftrace.core.counter_file import CounterFile
from ftrace.core.fault_guard import FaultGuard
from ftrace.core.probe import live_probes
from ftrace.core.sites.spare_stubs import SpareStubs
from ftrace.hit import (
    actions,
    address_table,
    asynchronous,
    call_records,
    call_table,
    cancellation,
    counter_rows,
    dispatch,
    dispatch_exit,
    ended_threads,
    faults,
    left_hits,
    made,
    nodes,
    parking,
    pid_list,
    poke,
    pools,
    python_left,
    quiesce,
    records,
    recursion,
    rethook,
    selected_calls,
    signal_masks,
    signal_waits,
    task_filter,
    text_poke,
)
from ftrace.hit.address_table import Entry, Table
from ftrace.hit.events import builtin_records, dump_request, event_state, printk, symbol_text
from ftrace.hit.records import ProbeList
from ftrace.hit.recursion import FAST
from ftrace.hit.ring_buffer import consuming, pool, writer
from ftrace.hit.tracers import function_hit, graph_hit, profile_hit, stack_hit
from ftrace.hit.unwind import walk
from ftrace.hit.x86_64 import entry_writing, stubs
from sandbox.memory import cpu, mappings, pages
from sandbox.memory.cpu import save_area
from sandbox.native import Unit
from sandbox.native.native_image import NativeImage
from sandbox.native.unit import Assembly
from sandbox.native.x86_64 import entry_bytes, plain_returns
from sandbox.process import fork, hooks
from sandbox.process.gil import short_switch_interval
from sandbox.process.once import once
from sandbox.threads import acting, atfork, contexts, signals, tasks, uncounted
from sandbox.threads.blocked_signals import threads_blocking_signal
from sandbox.threads.thread_key import ThreadKey, main_stack
from sandbox.x86_64.save_area import SaveArea

RUNTIME = "fprobe-runtime"
"""The name that its code is listed under."""
FUNCTIONS = (
    tasks.task_get,
    ended_threads.rethook_flush_task,
    rethook.drop_dead,
    nodes.on_one_stack,
    left_hits.forget_left,
    python_left.python_handlers_left,
    asynchronous.blocks_signals,
    asynchronous.no_frame_between,
    cancellation.cancellation_off,
    cancellation.cancellation_back,
    ended_threads.tasks_in_child,
    rethook.rethook_find_ret_addr,
    rethook.pool_after_fork,
    rethook.node_leave,
    dispatch.dispatch_entry,
    dispatch.dispatch_slow,
    dispatch_exit.dispatch_exit,
    dispatch.ftrace_cancel,
    dispatch.hit_reserve,
    parking.return_point_for,
    dispatch.multi_probe_one,
    dispatch.multi_probe_cancel,
    pools.pool_take,
    pools.pool_give,
    pools.pool_donate,
    made.note_made,
    made.was_made_last,
    pools.probe_set_flags,
    pools.sum_counters,
    pools.clear_counters,
    *counter_rows.FUNCTIONS,
    records.fill_list,
    text_poke.choose,
    text_poke.distinct_lists,
    text_poke.relist,
    text_poke.emit_stubs,
    text_poke.keep_changed,
    text_poke.poke_words,
    text_poke.poke_step,
    poke.poke_stage,
    text_poke.read_back,
    text_poke.poke_trap,
    text_poke.detour_trap,
    address_table.table_set,
    quiesce.quiesce,
    quiesce.is_pinned,
    signals.signal_dispatch,
    signals.displaced_handlers,
    threads_blocking_signal,
    faults.fault_signal,
    faults.read_fault,
    asynchronous.in_signal_handler,
    asynchronous.in_sub_interpreter_now,
    asynchronous.python_barred,
    dispatch.saved_vectors,
    *acting.FUNCTIONS,
    *contexts.FUNCTIONS,
    *atfork.FUNCTIONS,
    uncounted.count_threads,
    recursion.recursion_trylock,
    recursion.recursion_unlock,
    recursion.pause_tracing,
    recursion.unpause_tracing,
    recursion.pause_within,
    recursion.resume_within,
    *signal_masks.FUNCTIONS,
    *signal_waits.FUNCTIONS,
    *actions.HANDLERS,
    *call_table.FUNCTIONS,
    *call_records.FUNCTIONS,
    *selected_calls.FUNCTIONS,
    writer.reserve_slow,
    writer.stamp_of,
    writer.end_record,
    pool.take_page,
    pool.give_page,
    consuming.take_oldest,
    consuming.consume,
    consuming.read_clock,
    consuming.drain,
    consuming.reap,
    consuming.swap,
    consuming.set_live,
    consuming.set_spare,
    writer.write,
    *event_state.FUNCTIONS,
    address_table.table_set,
    *pid_list.FUNCTIONS,
    *task_filter.FUNCTIONS,
    *function_hit.FUNCTIONS,
    *graph_hit.FUNCTIONS,
    *profile_hit.FUNCTIONS,
    *stack_hit.FUNCTIONS,
    *builtin_records.FUNCTIONS,
    *dump_request.FUNCTIONS,
    builtin_records.tracing_mark_write,
    *printk.FUNCTIONS,
    *symbol_text.FUNCTIONS,
    *walk.FUNCTIONS,
    plain_returns.plain_functions,
    *entry_bytes.FUNCTIONS,
    *entry_writing.FUNCTIONS,
)


FORCE, FORCED = "FPROBE_FORCE", "breakpoints"
"""Environment variable: mechanisms to use even where a faster one is available (for tests), separated by commas."""

_TRANSLATED = (
    "this process runs under a code translator (valgrind, qemu-user, ...) that does not notice changed code: "
    "nothing can be probed"
)


class Runtime:
    """The linked hit path and the resources that it needs."""

    @short_switch_interval()
    def __init__(self) -> None:
        if not cpu.notices_changed_code():
            raise RuntimeError(_TRANSLATED)
        self.key = ThreadKey()
        self.image = NativeImage.of(_unit(), absolute={tasks.AT_FS: self.key.offset})
        hooks.own_code.add(self.image.__contains__)
        self.template = stubs.stub_template(self.key.offset, FAST, _stub_offsets())
        self.slab = mappings.reserve(tasks.COUNTERS + tasks.CAPACITY * tasks.STRIDE)
        self._set_variables()
        self.counters = CounterFile(self.image)
        self.key.set_destructor(self.image.address("rethook_flush_task"))
        self.signals = signals.SignalDispatcher(self.image)
        self.detours = AddressTable(self.image, self._publish_detours)
        """Breakpoints of patched entries -> where a thread that reaches one continues (ftrace.hit.text_poke)."""
        self._add_signal_consumers()
        self.faults = FaultGuard(self.image, self.signals, self.tasks)
        atfork.install(self.image, mappings.fork_words())
        contexts.installed = contexts.Contexts(self.image, self.signals)
        self.image.publish()
        self.spares = SpareStubs(self.image, self.slab)
        self.force_breakpoints = int(FORCED in os.environ.get(FORCE, "").split(","))
        """1: patch every site by the breakpoint protocol, also where a single store would do."""
        pages.sync_cores()
        fork.at_fork(0, 0, self.image.address("tasks_in_child"))
        fork.in_child(fork.Phase.TASKS, self._after_fork)

    @property
    def forked_from(self) -> int:
        """In the child of a fork, the native id that its thread had in the parent; 0 if that thread had never hit a probe."""
        return int(self.image.variable("forked_from").value)

    def tasks(self) -> list[ctypes.Structure]:
        """The records ever claimed, as ctypes structures of `sandbox.threads.tasks.Task`."""
        claimed = self.image.variable("tasks_claimed_high").value
        return [tasks.Task.ctypes.from_address(self.slab + index * tasks.STRIDE) for index in range(claimed)]

    def shadow_ips(self) -> list[int]:
        """The entry addresses of all hooked calls that have not returned, over all threads."""
        records = (
            node.record if self.spares.holds(node.stub) else node.stub - stubs.RETURN_POINT
            for task in self.tasks()
            for node in _nodes(task)
            if node.stub > parking.EMPTY
        )
        return [ctypes.c_uint64.from_address(record).value for record in records]

    @contextlib.contextmanager
    def unseen(self) -> Iterator[None]:
        """Within it, hits of the calling thread call no handler and are no misses of the program's."""
        before = self.image.call("pause_within")
        try:
            yield
        finally:
            self.image.call("resume_within", before)

    def quiesce(self, lists: Sequence[int] | None = None) -> bool:
        """Wait until no other thread can be inside what was replaced before. Releases the GIL.

        `lists`: the addresses of the replaced probe lists, if nothing else was replaced; hits in other lists are not waited for.
        Returns False if a hit in progress is itself waiting, perhaps the caller's own; nothing may be freed then.
        """
        if lists is None:
            return bool(self.image.call_and_wait("quiesce", 0, 0))
        replaced = (ctypes.c_uint64 * (len(lists) + 1))(*lists)
        return bool(self.image.call_and_wait("quiesce", ctypes.addressof(replaced), len(lists)))

    def _publish_detours(self, address: int) -> None:
        self.image.variable("detour_table").value = address

    def _set_variables(self) -> None:
        start, end = main_stack()
        known = {
            "tasks_slab": self.slab,
            "task_offset": self.key.offset,
            "task_key": self.key.number,
            "stack_field": self.key.stack_field,
            "tid_field": self.key.tid_field,
            "main_stack": start,
            "main_stack_size": end - start,
            "barrier_page": pages.barrier_page(),
        }
        for name, value in known.items():
            self.image.variable(name).value = value

    def _add_signal_consumers(self) -> None:
        for number, consumer in (
            (signals.SIGTRAP, "poke_trap"),
            (signals.SIGTRAP, "detour_trap"),
            (signals.SIGSEGV, "read_fault"),
            (signals.SIGBUS, "read_fault"),
        ):
            self.signals.add_consumer(number, self.image.address(consumer))

    def _after_fork(self) -> None:
        """Nodes of threads that the child does not have go back to their pools.

        Not if C code has forked, and another thread does this later: the forking one is taking nodes meanwhile.
        """
        if threading.get_native_id() == os.getpid():
            for probe in list(live_probes):
                self.image.call("pool_after_fork", probe.address)


def _nodes(task: ctypes.Structure) -> list[ctypes.Structure]:
    """The nodes on a task's shadow stack, newest first."""
    bottom = ctypes.addressof(task) + tasks.NODES
    return [tasks.Node.ctypes.from_address(address) for address in range(task.top or bottom, bottom, -tasks.NODE)]


def _stub_offsets() -> dict[str, int]:
    return {
        "REC": tasks.Task.offset("rec"),
        "TOP": tasks.Task.offset("top"),
        "STUB": tasks.Node.offset("stub"),
        "PROBES": tasks.Node.offset("probes"),
        "EXIT": ProbeList.offset("exit"),
    }


def _unit() -> Unit:
    return Unit(RUNTIME, FUNCTIONS, assembly=Assembly(_assembly, (save_area(),)), bounded=False)


def _assembly(area: SaveArea) -> str:
    from ftrace.hit import assembly

    return assembly.text(area)


_TABLE_BITS = 10


class AddressTable:
    """The writing side of a hash table from addresses to words that hits read without locks, for one writer at a time.

    A table that is half full is replaced by one of twice the size; the old one is kept, since a hit may be reading it.
    `image` has `table_set`; `publish` is called with the address of the native Table, now and whenever it changes.
    """

    def __init__(self, image: NativeImage, publish: Callable[[int], None]) -> None:
        self._image = image
        self._publish = publish
        self._entries: dict[int, int] = {}
        self._kept: list[Any] = []
        self._table = 0
        self._bits = _TABLE_BITS
        self._replace()

    def __getitem__(self, address: int) -> int:
        return self._entries[address]

    def __contains__(self, address: int) -> bool:
        return address in self._entries

    def set(self, address: int, word: int) -> None:
        """Let `address` lead to `word`, or (0) to nothing."""
        self._entries[address] = word
        if len(self._entries) * 2 > 1 << self._bits:
            self._bits += 1
            self._replace()
        else:
            self._image.call("table_set", self._table, address, word)

    def _replace(self) -> None:
        size = Table.offset("entries") + Entry.size * (1 << self._bits)
        memory = (ctypes.c_uint64 * (size // 8))()
        memory[0], memory[1] = 64 - self._bits, (1 << self._bits) - 1
        self._kept.append(memory)
        self._table = ctypes.addressof(memory)
        self._entries = {address: word for address, word in self._entries.items() if word}
        for address, word in self._entries.items():
            self._image.call("table_set", self._table, address, word)
        self._publish(self._table)


@once
def runtime() -> Runtime:
    """The process's runtime, started by the first caller."""
    return Runtime()
