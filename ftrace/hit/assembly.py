"""The assembly of the runtime: the trampolines, with offsets, sizes and flags filled in."""

from __future__ import annotations

from ftrace.hit import dispatch, left_hits
from ftrace.hit.made import OFF_STACK, ON_STACK
from ftrace.hit.records import DISABLED, POOL_SHARED, STOPPED, SWITCHING, Item, Probe, ProbeList
from ftrace.hit.recursion import FAST
from ftrace.hit.x86_64 import entry_detour, preserving_stub, stubs, trampolines
from ftrace.hit.x86_64.assembly_text import with_call_frames
from ftrace.hit.x86_64.guard import GUARDED_READ
from ftrace.hit.x86_64.pt_regs import USER_CS, USER_FLAGS, USER_SS, pt_regs
from ftrace.hit.x86_64.restorer import RESTORER
from ftrace.hit.x86_64.signal_masks import SIGNAL_MASKS
from ftrace.hit.x86_64.thread_start import THREAD_START
from ftrace.hit.x86_64.variadic import VARIADIC
from ftrace.hit.x86_64.vector_reads import VECTOR_READS
from sandbox.threads import tasks
from sandbox.x86_64.save_area import SaveArea


def text(area: SaveArea) -> str:
    """All of it, for vectors that are saved as `area` says."""
    trampolines_text = trampolines.assembly(_constants(area))
    own = THREAD_START + RESTORER + GUARDED_READ + VECTOR_READS + SIGNAL_MASKS + VARIADIC
    return with_call_frames(trampolines_text + own)


def common(area: SaveArea) -> dict[str, int | str]:
    """Constants for the assembly of every kind of probe: selectors, fields of a pt_regs and a task, the area for vectors."""
    task, regs = tasks.Task, pt_regs
    return {
        "USER_SS": USER_SS, "USER_CS": USER_CS, "REGS_IP": regs.offset("ip"), "REGS_SP": regs.offset("sp"),
        "REGS_FLAGS": regs.offset("flags"), "REGS_BX": regs.offset("bx"), "REGS_AX": regs.offset("ax"),
        "REGS_BP": regs.offset("bp"),
        "TASK": tasks.AT_FS, "REC": task.offset("rec"), "TOP": task.offset("top"), "VECTORS": task.offset("vectors"),
        "XSAVE_SIZE": area.size + 64, "XSAVE_END": area.size + 7 & -8, "XSAVE_MASK": area.mask, "XSAVE": area.instruction,
        "VZEROUPPER": "" if area.register == "xmm" else "vzeroupper",
    }  # fmt: skip


def _constants(area: SaveArea) -> dict[str, int | str]:
    """Constants for this assembly: field offsets, sizes and flags."""
    task, node, item, counters = tasks.Task, tasks.Node, Item, tasks.Counters
    first_item = ProbeList.offset("items")
    return {
        **common(area), **_guard_offsets(),
        "LIST": task.offset("list"), "HIT_SP": task.offset("hit_sp"), "AT_RETURN": left_hits.AT_RETURN,
        "LIMIT": task.offset("limit"), "CONTEXT": task.offset("context"),
        "STACK": task.offset("stack"), "STACK_SIZE": task.offset("stack_size"), "OFF_STACK": OFF_STACK,
        "MADE": node.offset("made"), "ON_STACK": ON_STACK - (1 << 64),
        "FRAME": node.offset("frame"), "PARENT": node.offset("parent"), "STUB": node.offset("stub"),
        "PROBES": node.offset("probes"), "INLINE_DATA": node.offset("inline_data"),
        "NODE": tasks.NODE, "TALLY": counters.offset("tally"),
        "CREDIT_UNIT": tasks.CREDIT_UNIT, "HIT_WITH_CREDIT": tasks.HIT_WITH_CREDIT, "LIST_WORDS": ProbeList.offset("data_words"),
        "ITEM_PROBE": first_item + item.offset("probe"), "ITEM_ENTRY": first_item + item.offset("entry"),
        "ITEM_EXIT": first_item + item.offset("exit"), "ITEM_COUNTERS": first_item + item.offset("counters"),
        "ITEMS": first_item, "ITEM": item.size, "ITEM_BIT": first_item + item.offset("bit"),
        "ITEM_TAKES": first_item + item.offset("takes"), "ITEM_IN_NODE": first_item + item.offset("in_node"),
        "LIST_LAST": ProbeList.offset("last"), "ARMED": node.offset("armed"),
        "MULTI_PROBE": dispatch.MULTI_PROBE,
        "PROBE_FLAGS": 0, "PROBE_ENTRY": Probe.offset("entry"), "PROBE_EARLY": Probe.offset("early"),
        "PROBE_POOL": Probe.offset("pool_shared"),
        "PROBE_LEAN_ENTRY": Probe.offset("lean_entry"), "PROBE_LEAN_EXIT": Probe.offset("lean_exit"),
        "POOL_FLAGS": POOL_SHARED | SWITCHING, "OFF_FLAGS": DISABLED | STOPPED, "FAST": FAST,
        "RECORD_IP": -stubs.RETURN_POINT,
        "STUB_OF_SLOW": -entry_detour.DECIDED, "STUB_OF_FAST": -entry_detour.CALLED, "STEP_OVER": entry_detour.STEP_OVER,
        "CALLED_TO_SLOW": entry_detour.CALLED - entry_detour.SLOW,
        "STUB_OF_RETURN": stubs.RETURN_POINT - preserving_stub.AFTER_CALL, "LIST_EXIT": ProbeList.offset("exit"),
        "SLOW_TO_RETURN": stubs.SLOW_RETURN - stubs.RETURN_POINT,
        "USER_FLAGS": USER_FLAGS, "EXIT_FROM_RETURN": stubs.EXIT_POINT - stubs.RETURN_POINT,
        "HOOKED": dispatch.HOOKED, "REDIRECTED": dispatch.REDIRECTED,
        "VECTOR": area.register, "XGETBV": "xgetbv" if area.tells_use else "mov $-1, %eax",
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
