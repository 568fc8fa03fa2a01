"""The native runtime: one image with the whole hit path, linked when the first function is to be traced."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence

from ftrace import text_poke
from ftrace.fault_guard import FaultGuard
from ftrace.hit import (
    actions,
    asynchronous,
    dispatch,
    faults,
    guarded_read,
    pools,
    quiesce,
    recursion,
    rethook,
    several,
    vectors,
)
from ftrace.hit.records import DISABLED, POOL_SHARED, STOPPED, SWITCHING, Item, Probe, ProbeList
from ftrace.hit.recursion import FAST
from ftrace.probe import live_probes
from ftrace.x86_64 import stubs, trampolines
from ftrace.x86_64.callframes import with_call_frames
from ftrace.x86_64.guarded_read import GUARDED_READ
from ftrace.x86_64.vector_reads import VECTOR_READS
from sandbox import contexts, memory, signals, tasks
from sandbox.native import Unit
from sandbox.native_image import NativeImage
from sandbox.once import once
from sandbox.thread_key import ThreadKey
from sandbox.x86_64.vectors import SaveArea, save_area

FUNCTIONS = (
    tasks.task_get,
    rethook.rethook_flush_task,
    rethook.drop_dead,
    rethook.tasks_after_fork,
    rethook.rethook_find_ret_addr,
    rethook.pool_after_fork,
    rethook.node_leave,
    dispatch.dispatch_entry,
    dispatch.dispatch_slow,
    dispatch.dispatch_exit,
    dispatch.ftrace_cancel,
    several.several_one,
    several.several_cancel,
    pools.pool_take,
    pools.pool_give,
    pools.pool_donate,
    pools.probe_set_flags,
    pools.sum_counters,
    pools.clear_counters,
    text_poke.emit_stubs,
    text_poke.choose,
    text_poke.distinct_lists,
    text_poke.relist,
    text_poke.missing_stub,
    text_poke.verify_sites,
    text_poke.poke_words,
    text_poke.poke_step,
    text_poke.read_back,
    text_poke.poke_trap,
    quiesce.quiesce,
    quiesce.is_pinned,
    signals.signal_dispatch,
    faults.fault_signal,
    guarded_read.read_fault,
    asynchronous.in_signal_handler,
    vectors.saved_vectors,
    *contexts.FUNCTIONS,
    recursion.recursion_trylock,
    recursion.recursion_unlock,
    *actions.HANDLERS,
)


def constants(task_offset: int, area: SaveArea) -> dict[str, int | str]:
    """What the assembly names: field offsets and sizes."""
    task, node, item, counters = tasks.Task, tasks.Node, Item, tasks.Counters
    first_item = ProbeList.offset("items")
    return {
        "TASK": task_offset, "REC": task.offset("rec"), "LIST": task.offset("list"),
        "TOP": task.offset("top"), "LIMIT": task.offset("limit"),
        "FRAME": node.offset("frame"), "PARENT": node.offset("parent"), "STUB": node.offset("stub"),
        "PROBES": node.offset("probes"), "INLINE_DATA": node.offset("inline_data"),
        "NODE": tasks.NODE, "TALLY": counters.offset("tally"),
        "CREDIT_UNIT": tasks.CREDIT_UNIT, "HIT_WITH_CREDIT": tasks.HIT_WITH_CREDIT, "LIST_WORDS": ProbeList.offset("data_words"),
        "ITEM_PROBE": first_item + item.offset("probe"), "ITEM_ENTRY": first_item + item.offset("entry"),
        "ITEM_EXIT": first_item + item.offset("exit"), "ITEM_COUNTERS": first_item + item.offset("counters"),
        "ITEMS": first_item, "ITEM": item.size, "ITEM_BIT": first_item + item.offset("bit"),
        "ITEM_TAKES": first_item + item.offset("takes"), "ITEM_IN_NODE": first_item + item.offset("in_node"),
        "LIST_LAST": ProbeList.offset("last"), "ARMED": node.offset("armed"), "CONTEXT": task.offset("context"),
        "SEVERAL": several.SEVERAL,
        "PROBE_FLAGS": 0, "PROBE_POOL": Probe.offset("pool_shared"),
        "POOL_FLAGS": POOL_SHARED | SWITCHING, "OFF_FLAGS": DISABLED | STOPPED, "FAST": FAST,
        "RECORD_IP": -stubs.RETURN_POINT,
        "SLOW_TO_RETURN": stubs.SLOW_RETURN - stubs.RETURN_POINT,
        "REGS_IP": dispatch.pt_regs.offset("ip"), "REGS_SP": dispatch.pt_regs.offset("sp"),
        **_guard_offsets(), "USER_SS": 0x2B, "USER_FLAGS": 0x246, "EXIT_FROM_RETURN": stubs.EXIT_POINT - stubs.RETURN_POINT,
        "USER_CS": 0x33, "HOOKED": dispatch.HOOKED, "REDIRECTED": dispatch.REDIRECTED,
        "VECTORS": task.offset("vectors"), "XSAVE_SIZE": area.size + 64, "XSAVE_END": area.size + 7 & -8,
        "XSAVE_MASK": area.mask, "XSAVE": area.instruction, "VECTOR": area.register,
        "XGETBV": "xgetbv" if area.tells_use else "mov $1, %eax",
    }  # fmt: skip


def _guard_offsets() -> dict[str, int]:
    task, guard = tasks.Task, tasks.Guard
    fields = {"TARGET": "target", "PARENT": "parent", "SP": "sp", "NODES": "top", "REC": "rec", "BX": "bx", "BP": "bp"}
    fields |= {name.upper(): name for name in ("r12", "r13", "r14", "r15")}
    found = {f"GUARD_{name}": guard.offset(field) for name, field in fields.items()}
    return found | {
        "GUARD_TOP": task.offset("guard"),
        "GUARD_END": task.offset("guard_end"),
        "GUARD_SIZE": guard.size,
    }


FORCE, FORCED = "FPROBE_FORCE", "breakpoints"
"""Environment variable: what to do though something quicker would do, separated by commas."""


class Runtime:
    """The linked hit path and what it needs of the process."""

    def __init__(self) -> None:
        self.key = ThreadKey()
        self.image = NativeImage.of(_unit(self.key.offset))
        self.own_code: list[Callable[[int], bool]] = [self.image.__contains__]
        """Each says whether an address is in code of ours, which stack traces leave out; other kinds of probes add theirs."""
        self.template = stubs.stub_template(self.key.offset, FAST, _stub_offsets())
        self.slab = memory.reserve(tasks.CAPACITY * tasks.STRIDE)
        self.image.variable("tasks_slab").value = self.slab
        self.image.variable("task_offset").value = self.key.offset
        self.image.variable("task_key").value = self.key.number
        self.image.variable("barrier_page").value = memory.barrier_page()
        self.key.set_destructor(self.image.address("rethook_flush_task"))
        self.signals = signals.SignalRoom(self.image)
        self.signals.add_consumer(signals.SIGTRAP, self.image.address("poke_trap"))
        for number in (signals.SIGSEGV, signals.SIGBUS):
            self.signals.add_consumer(number, self.image.address("read_fault"))
        self.faults = FaultGuard(self.image, self.signals, self.tasks)
        contexts.installed = contexts.Contexts(self.image, self.signals)
        self.image.publish()
        self.force_breakpoints = int(FORCED in os.environ.get(FORCE, "").split(","))
        """1: patch every site by the breakpoint protocol, also where a single store would do."""
        memory.sync_cores()
        os.register_at_fork(after_in_child=self._after_fork)

    def tasks(self) -> list[ctypes.Structure]:
        """The records ever claimed, as ctypes structures of `sandbox.tasks.Task`."""
        claimed = self.image.variable("tasks_claimed_high").value
        return [tasks.Task.ctypes.from_address(self.slab + index * tasks.STRIDE) for index in range(claimed)]

    def shadow_ips(self) -> list[int]:
        """The entry addresses of all hooked calls that have not returned, over all threads."""
        records = (
            node.stub - stubs.RETURN_POINT
            for task in self.tasks()
            for node in _nodes(task)
            if node.stub > rethook.EMPTY
        )
        return [ctypes.c_uint64.from_address(record).value for record in records]

    def quiesce(self, lists: Sequence[int] | None = None) -> bool:
        """Return when no other thread can still be inside what was replaced before. Without the GIL.

        `lists`: the addresses of the probe lists that were replaced, if it was nothing else; hits in others are not waited
        for. False: a hit is still inside that waits itself, perhaps the caller's own; nothing may be freed yet.
        """
        if lists is None:
            return bool(self.image.call("quiesce", 0, 0))
        replaced = (ctypes.c_uint64 * (len(lists) + 1))(*lists)
        return bool(self.image.call("quiesce", ctypes.addressof(replaced), len(lists)))

    def _after_fork(self) -> None:
        """Only the forking thread lives on in the child: its record goes on, the others' nodes go back to their pools."""
        self.image.call("tasks_after_fork")
        for probe in list(live_probes):
            self.image.call("pool_after_fork", probe.address)


def _nodes(task: ctypes.Structure) -> list[ctypes.Structure]:
    """The nodes on a task's shadow stack, newest first."""
    return [tasks.Node.ctypes.from_address(address) for address in range(task.top, task.bottom, -tasks.NODE)]


def _stub_offsets() -> dict[str, int]:
    return {
        "REC": tasks.Task.offset("rec"),
        "TOP": tasks.Task.offset("top"),
        "STUB": tasks.Node.offset("stub"),
        "PROBES": tasks.Node.offset("probes"),
        "EXIT": ProbeList.offset("exit"),
    }


def _unit(task_offset: int) -> Unit:
    text = trampolines.assembly(constants(task_offset, save_area()))
    return Unit(
        "fprobe-runtime",
        FUNCTIONS,
        assembly=text + signals.RESTORER + GUARDED_READ + VECTOR_READS,
        annotate=with_call_frames,
        bounded=False,
    )


@once
def runtime() -> Runtime:
    """The process's runtime, started by the first caller."""
    return Runtime()
