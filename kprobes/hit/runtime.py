"""The native half of kprobes: one image, linked to the tracing runtime when the first probe is registered."""

from __future__ import annotations

from typing import Any

from ftrace.hit.dispatch import pt_regs
from ftrace.hit.records import Probe
from ftrace.hit.recursion import INSIDE
from ftrace.runtime import runtime
from kprobes.hit import optimized, table, trap
from kprobes.hit.records import HIT_ACTIVE, OFF, Child, ChildList, Instance, Kretprobe, Record
from kprobes.x86_64 import detour, lone_handlers, optimized_detour
from kprobes.x86_64.guarded_access import GUARDED_ACCESS
from sandbox import signals
from sandbox.native import Unit
from sandbox.native_image import NativeImage
from sandbox.once import once
from sandbox.tasks import Task
from sandbox.x86_64.vectors import save_area


def functions() -> tuple[Any, ...]:
    """What Python, the signals' dispatcher, the assembly and ftrace call."""
    from kprobes import ftrace_site
    from kprobes.hit import faulting, kretprobe_entry

    return (
        table.table_set,
        trap.kprobe_trap,
        trap.kprobe_detour_hit,
        faulting.kprobe_fault,
        optimized.kprobe_optimized_hit,
        ftrace_site.kprobe_ftrace_handler,
        kretprobe_entry.kprobe_return_handler,
        kretprobe_entry.kretprobe_in_list,
    )


LINKED = ("task_get", "in_signal_handler", "drop_dead", "pool_take", "pool_give")
"""What of the tracing runtime the image calls."""


def _constants(task_offset: int) -> dict[str, int | str]:
    area = save_area()
    return {
        "USER_SS": 0x2B, "USER_CS": 0x33,
        "REGS_SP": pt_regs.offset("sp"), "REGS_IP": pt_regs.offset("ip"), "REGS_FLAGS": pt_regs.offset("flags"),
        "REGS_ORIG": pt_regs.offset("orig_ax"),
        "TASK": task_offset, "REC": Task.offset("rec"), "INSIDE": INSIDE, "SERIAL": Task.offset("serial"),
        "KPROBE": Task.offset("kprobe"), "STATUS": Task.offset("kprobe_status"), "HIT_ACTIVE": HIT_ACTIVE,
        "CHILDREN": Record.offset("children"), "PLAIN": ChildList.offset("plain"), "CHILD": ChildList.offset("children"),
        "FLAGS": Child.offset("flags"), "OFF": OFF, "PRE": Child.offset("pre"), "COOKIE": Child.offset("pre_cookie"),
        "VECTORS": Task.offset("vectors"), "TID": Task.offset("tid"), "TOP": Task.offset("top"),
        "PREEMPT": Task.offset("preempt"), "KPROBE_CHILD": Task.offset("kprobe_child"), "ACTION": Probe.offset("action"),
        "CHILD_MISSED": Child.offset("nmissed"), "RP_CHILD": Kretprobe.offset("child"), "RP_ENTRY": Kretprobe.offset("entry"),
        "RP_HANDLER": Kretprobe.offset("handler"), "RP_MISSED": Kretprobe.offset("nmissed"),
        "RI_RP": Instance.offset("rp"), "RI_RET": Instance.offset("ret_addr"), "RI_TASK": Instance.offset("task"),
        "HEADER": Instance.offset("data"),
        "XSAVE_SIZE": area.size + 64, "XSAVE_END": area.size + 7 & -8, "XSAVE_MASK": area.mask, "XSAVE": area.instruction,
    }  # fmt: skip


class KprobeRuntime:
    """The linked image, installed as a consumer of the signals that probed code raises."""

    def __init__(self) -> None:
        from llvmlite import binding

        from kprobes.return_stubs import is_return_stub

        tracing = runtime()
        for symbol in LINKED:
            binding.add_symbol(symbol, tracing.image.address(symbol))
        constants = _constants(tracing.key.offset)
        rooms = (detour, optimized_detour, lone_handlers)
        text = "".join(room.assembly(constants) for room in rooms) + GUARDED_ACCESS
        self.image = NativeImage.of(Unit("kprobes-runtime", functions(), assembly=text, bounded=False))
        self.image.variable("task_offset").value = tracing.key.offset
        self.image.publish()
        tracing.own_code += [self.image.__contains__, is_return_stub]
        self.table = table.RecordTable(self.image)
        tracing.signals.add_consumer(signals.SIGTRAP, self.image.address("kprobe_trap"))
        for number in (signals.SIGSEGV, signals.SIGBUS, signals.SIGFPE, signals.SIGILL):
            tracing.signals.add_consumer(number, self.image.address("kprobe_fault"), first=True)


@once
def kprobe_runtime() -> KprobeRuntime:
    """The process's, started by the first caller."""
    return KprobeRuntime()
