"""Probes at entry and return of functions of a library, which count into a table of calls."""

from __future__ import annotations

import re
from collections.abc import Set
from fnmatch import fnmatchcase
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


class Pattern(NamedTuple):
    """`libz:inflate*`: functions of the libraries that `owner` means."""

    owner: str
    functions: str

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Raises ValueError for one without a library."""
        owner, colon, functions = text.partition(":")
        if not (owner and colon and functions):
            raise ValueError(f"the pattern is {text!r}; name a library and functions of it, as 'libz:inflate*'")
        return cls(owner, functions)

    def __str__(self) -> str:
        return f"{self.owner}:{self.functions}"

    def means(self, library: str) -> bool:
        """Whether `owner` means the library with this file name, as `libz` means libz.so.1."""
        stem = library.partition(".so")[0]
        return any(fnmatchcase(name, self.owner) for name in (library, stem, re.sub(r"-[\d.]+$", "", stem)))

    def is_settled(self, loaded: Set[str]) -> bool:
        """Whether no library can come that it means: it names one, and that is there."""
        return not set(self.owner) & set("*?[") and any(map(self.means, loaded))


class Armed(NamedTuple):
    """What became of a pattern. `skipped`: names of functions, and why they have no probe."""

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
