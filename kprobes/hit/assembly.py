"""The assembly of kprobes: routines for breakpoints, jumps and single-probe sites, with their constants filled in."""

from __future__ import annotations

from ftrace.hit.assembly import common
from ftrace.hit.events.event_state import EventState
from ftrace.hit.left_hits import ITSELF
from ftrace.hit.records import Probe
from ftrace.hit.recursion import FAST, FTRACE_NORMAL, INSIDE
from ftrace.hit.x86_64.pt_regs import pt_regs
from kprobes.hit.control import IN_STUB, NO_PREEMPTION, NOT_INSIDE, KprobeCtlblk
from kprobes.hit.emulate import GUARDED_ACCESS
from kprobes.hit.records import HIT_ACTIVE, OFF, Child, ChildList, Instance, Kretprobe, PlaceRecord
from kprobes.x86_64 import detour, optimized_detour, single_handlers
from sandbox.threads.tasks import IN_NO_LIST, Task
from sandbox.x86_64.save_area import SaveArea


def text(area: SaveArea) -> str:
    """The assembly text. `area`: how vector registers are saved."""
    constants = _constants(area)
    return (
        "".join(module.assembly(constants) for module in (detour, optimized_detour, single_handlers)) + GUARDED_ACCESS
    )


def _control(field: str) -> int:
    """The offset in a task of a field of its control block."""
    return Task.offset("kprobe_ctlblk") + KprobeCtlblk.offset(field)


def _constants(area: SaveArea) -> dict[str, int | str]:
    return {
        **common(area),
        "REGS_ORIG": pt_regs.offset("orig_ax"),
        "ADDRESS": PlaceRecord.offset("address"), "INSIDE": INSIDE, "SERIAL": Task.offset("serial"),
        "LIST": Task.offset("list"), "HIT_SP": Task.offset("hit_sp"), "ITSELF": ITSELF, "IN_NO_LIST": IN_NO_LIST,
        "FAST": FAST, "FAST_UNLOCKED": FAST & ~FTRACE_NORMAL,
        "KPROBE": Task.offset("kprobe"), "STATUS": _control("status"), "HIT_ACTIVE": HIT_ACTIVE,
        "FRAME": _control("frame"), "IN_STUB": IN_STUB, "NOT_INSIDE": NOT_INSIDE, "RETURNING": IN_STUB | NO_PREEMPTION,
        "CHILDREN": PlaceRecord.offset("children"), "PLAIN": ChildList.offset("plain"), "CHILD": ChildList.offset("children"),
        "FLAGS": Child.offset("flags"), "OFF": OFF, "PRE": Child.offset("pre"), "COOKIE": Child.offset("pre_cookie"),
        "TID": Task.offset("tid"), "PREEMPT": Task.offset("preempt"), "KPROBE_CHILD": _control("child"),
        "ACTION": Probe.offset("action"), "CHILD_ACTION": Child.offset("action"), "SHORTCUT": EventState.offset("shortcut"),
        "CHILD_MISSED": Child.offset("nmissed"), "RP_CHILD": Kretprobe.offset("child"), "RP_ENTRY": Kretprobe.offset("entry"),
        "RP_HANDLER": Kretprobe.offset("handler"), "RP_MISSED": Kretprobe.offset("nmissed"),
        "RI_RP": Instance.offset("rp"), "RI_RET": Instance.offset("ret_addr"), "RI_TASK": Instance.offset("task"),
        "HEADER": Instance.offset("data"),
    }  # fmt: skip
