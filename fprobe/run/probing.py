"""Probes at entry and return of functions of a library, which count into a table of calls."""

from __future__ import annotations

from typing import NamedTuple

from fprobe.run.table import Table
from ftrace.hit.call_table import ENTER, LEAVE, CallTable, table_enter, table_event, table_leave
from kprobes.attachment import ReturnAttachment
from kprobes.native_decorator import native
from kprobes.returns import kretprobe
from kprobes.targets import Where
from sandbox.native import cast, load, ptr, rdtsc, u64

_DATA = 16
_PENDING = 64
"""Calls of one function that may be waited for at the same time."""


class Armed(NamedTuple):
    """What became of a pattern. `skipped`: names of functions, and why they have no probe."""

    attached: int
    skipped: list[tuple[str, str]]
    attachment: object


@native
def call_begins(ri, regs):  # type: ignore[no-untyped-def]  # the decorator fills them in
    caller = load(cast(ptr[u64], regs.sp), "relaxed")
    table = cast(ptr[CallTable], ri.rp.action)
    table_enter(table, ri.rp.child.address, caller, 0)
    table_event(table, ri.rp.child.address, regs.sp + ENTER, caller)
    ri.data[1] = caller
    ri.data[0] = rdtsc()


@native
def call_ends(ri, regs):  # type: ignore[no-untyped-def]
    ticks = rdtsc() - ri.data[0]
    table = cast(ptr[CallTable], ri.rp.action)
    table_leave(table, ri.rp.child.address, ri.data[1], ticks)
    table_event(table, ri.rp.child.address, regs.sp - 8 + LEAVE, regs.ax)


def arm(target: str, table: Table) -> Armed:
    """Probe the functions of a library that `target` means. Raises LookupError if there are none, OSError if
    none can be probed.
    """

    def make(where: Where) -> kretprobe:
        probe = kretprobe(**where.fields(), handler=call_ends, entry_handler=call_begins, data_size=_DATA)
        probe.maxactive, probe.action = _PENDING, table.address
        return probe

    attachment = ReturnAttachment(target, make, None).attach()
    skipped = [(skipped.name, skipped.reason) for skipped in attachment.skipped]
    return Armed(len(attachment.probes), skipped, attachment)
