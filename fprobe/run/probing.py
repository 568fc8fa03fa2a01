"""Probes at entry and return of the functions that a pattern means, which count into a table of calls."""

from __future__ import annotations

import fnmatch
from collections.abc import Set
from typing import NamedTuple

from fprobe.run.table import Table
from ftrace.hit.call_table import CallTable, table_enter, table_leave
from kprobes.attachment import ReturnAttachment
from kprobes.native_decorator import native
from kprobes.returns import kretprobe
from kprobes.targets import Where
from sandbox.native import cast, load, ptr, rdtsc, u64

_DATA = 16
_PENDING = 64
"""Calls of one function that may be waited for at the same time."""


class Armed(NamedTuple):
    """What became of a pattern."""

    attached: int
    skipped: list[tuple[str, str]]
    attachment: object


@native
def call_begins(ri, regs):  # type: ignore[no-untyped-def]  # the decorator fills them in
    caller = load(cast(ptr[u64], regs.sp), "relaxed")
    table_enter(cast(ptr[CallTable], ri.rp.action), ri.rp.child.address, caller, 0)
    ri.data[1] = caller
    ri.data[0] = rdtsc()


@native
def call_ends(ri, regs):  # type: ignore[no-untyped-def]
    ticks = rdtsc() - ri.data[0]
    table_leave(cast(ptr[CallTable], ri.rp.action), ri.rp.child.address, ri.data[1], ticks)


def arm(pattern: str, loaded: Set[str], table: Table) -> Armed | None:
    """Probe the functions of `loaded` libraries that `pattern` means; None if it means none of these libraries."""
    owner, _, _ = pattern.partition(":")
    if not any(_is_called(name, owner) for name in loaded):
        return None

    def make(where: Where) -> kretprobe:
        probe = kretprobe(**where.fields(), handler=call_ends, entry_handler=call_begins, data_size=_DATA)
        probe.maxactive, probe.action = _PENDING, table.address
        return probe

    attachment = ReturnAttachment(pattern, make, None).attach()
    return Armed(len(attachment.probes), [(skipped.name, skipped.reason) for skipped in attachment.skipped], attachment)


def _is_called(library: str, owner: str) -> bool:
    """Whether a library's file name is meant by the first half of a pattern, as `libz` means libz.so.1."""
    return library == owner or library.split(".so")[0] == owner or fnmatch.fnmatch(library, owner)
