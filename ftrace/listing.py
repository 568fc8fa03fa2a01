"""The text files of ftrace about functions: a line per function (FT-73..76).

What the kernel keeps in each record (its count and flags, FT-9..12) is read off the registered operations here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ftrace.hit.records import CALLBACK, KPROBE, KPROBE_SHARED, PYTHON, ProbeList
from ftrace.locations import Location, Selection
from ftrace.ops import FTRACE_OPS_FL_IPMODIFY, FTRACE_OPS_FL_SAVE_REGS, ftrace_ops
from ftrace.tracer import tracer
from sandbox.module import is_loaded
from sandbox.symbols import symbol_table

ENABLED, REGS, REGS_EN, TRAMP, TRAMP_EN, IPMODIFY = (1 << bit for bit in range(31, 25, -1))
DIRECT, DIRECT_EN, TOUCHED, MODIFIED = 1 << 24, 1 << 23, 1 << 20, 1 << 19


@dataclass(frozen=True)
class Record:
    """A location and the registered operations that select it, newest first (struct dyn_ftrace)."""

    location: Location
    wanting: Sequence[ftrace_ops]

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.wanting)

    @property
    def wants_regs(self) -> bool:
        """Whether one of them wants all registers."""
        return any(ops.flags & FTRACE_OPS_FL_SAVE_REGS for ops in self.wanting)

    @property
    def modifies(self) -> bool:
        """Whether one of them modifies ip."""
        return any(ops.flags & FTRACE_OPS_FL_IPMODIFY for ops in self.wanting)

    @property
    def direct(self) -> int:
        """The address of its direct function, or 0 (FT-77)."""
        return next((ops.direct_call for ops in self.wanting if ops.direct_call), 0)

    @property
    def has_trampoline(self) -> bool:
        """Whether the site leads to a trampoline of one ops (FT-12)."""
        return self.count == 1

    @property
    def trampoline(self) -> int:
        """The address of the trampoline that the site's list names."""
        record = self.location.block.list_at(self.location.position)
        return int(ProbeList.ctypes.from_address(record.address).entry or 0)

    @property
    def flags(self) -> int:
        """What the kernel would have in dyn_ftrace.flags (6.12)."""
        tracing, location = tracer(), self.location
        patched = bool(self.count) and tracing.switched_on
        flags = self.count | TOUCHED * tracing.touched.has(location) | MODIFIED * tracing.modified.has(location)
        flags |= ENABLED * patched | (REGS | REGS_EN * patched) * self.wants_regs | IPMODIFY * self.modifies
        flags |= (TRAMP | TRAMP_EN * patched) * self.has_trampoline
        return flags | (DIRECT | DIRECT_EN * self.has_trampoline) * bool(self.direct)

    def line(self) -> str:
        """`name [module] (count)` and the columns R I D O M, then what the site leads to."""
        columns = ((self.wants_regs, " R"), (self.modifies, " I"), (self.direct, " D"), (False, " O"))
        head = f"{self.location} ({self.count})" + "".join(text if present else "  " for present, text in columns)
        head += " M " if tracer().modified.has(self.location) else "   "
        direct = f"\n\tdirect-->{_described(self.direct)}" if self.direct else ""
        return head + self._leads_to() + direct

    def _leads_to(self) -> str:
        """The trampoline and callback if there is one ops, else what the common trampoline calls."""
        if self.has_trampoline:
            callback = callback_name(self.wanting[0])
            return f"\ttramp: {self.trampoline:#x} ({callback}) ->{callback}"
        return " ->" + (
            _described(tracer().runtime.image.address("dispatch_entry")) if self.count else "ftrace_stub+0x0/0x0"
        )


def record_at(location: Location) -> Record:
    """The record of one location."""
    return Record(location, [ops for ops in tracer().enabled if ops.selection().has(location)])


def records(locations: Iterable[Location]) -> Iterator[Record]:
    """The record of each location."""
    selections = [(ops, ops.selection()) for ops in tracer().enabled]
    for location in locations:
        yield Record(location, [ops for ops, selection in selections if selection.has(location)])


def available_filter_functions(addresses: bool = False) -> str:
    """Every function that has a stub, in table order; with `addresses` as in available_filter_functions_addrs.

    Empty, as the other listings, once ftrace is dead.
    """
    locations = _ordered(tracer().table.everything())
    return "".join(f"{location.ip:x} {location}\n" if addresses else f"{location}\n" for location in locations)


def enabled_functions() -> str:
    """The functions that are patched, with how many ops want them and what their stub leads to."""
    tracing = tracer()
    if not tracing.switched_on:
        return ""
    wanted = Selection()
    for ops in tracing.enabled:
        wanted |= ops.selection()
    return _lines(wanted)


def touched_functions() -> str:
    """The same for every function that has ever been patched, with the count of now, which may be 0 (FT-76)."""
    return _lines(tracer().touched)


def _lines(selection: Selection) -> str:
    return "".join(f"{record.line()}\n" for record in records(_ordered(selection)))


def _ordered(selection: Selection) -> Iterator[Location]:
    """The locations of a selection, in table order; none if ftrace is dead (FT-70)."""
    tracing = tracer()
    if not tracing.dead:
        there = tracing.table.everything()
        yield from Selection({block: selection[block] for block in there if block in selection}).locations()


def callback_name(ops: ftrace_ops) -> str:
    """What the kernel would call: the ops' callback, as `name+0x0/0xsize`. A Python function has no size."""
    if ops.direct_call:
        return "call_direct_funcs+0x0/0x0"
    native = ops.probe.native
    if native.kind & KPROBE:
        return _described(ops.func)
    if not native.kind & CALLBACK:
        return "fprobe_kprobe_handler+0x0/0x0" if native.kind & KPROBE_SHARED else "fprobe_handler+0x0/0x0"
    if native.kind & PYTHON:
        return f"{getattr(ops.func, '__name__', type(ops.func).__name__)}+0x0/0x0"
    return _described(native.entry or 0)


def _described(address: int) -> str:
    """`name+0xoff/0xsize`, with the module if it is a program's: what belongs to the runtime is the core image's."""
    location = symbol_table.locate(address)
    if location is None:
        return f"{address:#x}"
    return str(location) if is_loaded(location.symbol.module) else str(location).partition(" ")[0]
