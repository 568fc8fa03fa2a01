"""The text files: available_filter_functions, enabled_functions (FT-73..75). Produced as text, a line per function."""

from __future__ import annotations

from collections.abc import Iterator

from ftrace.locations import Location
from ftrace.ops import FTRACE_OPS_FL_IPMODIFY, FTRACE_OPS_FL_SAVE_REGS, ftrace_ops
from ftrace.records import CALLBACK, KPROBE_SHARED, ProbeList
from ftrace.tracer import tracer
from sandbox.symbols import symbol_table


def available_filter_functions(addresses: bool = False) -> str:
    """Every function that has a stub, in table order; with `addresses` as in available_filter_functions_addrs."""
    locations = tracer().table.everything().locations()
    return "".join(f"{location.ip:x} {location}\n" if addresses else f"{location}\n" for location in locations)


def enabled_functions() -> str:
    """The functions that are patched, with how many ops want them and what their stub leads to."""
    return "".join(f"{line}\n" for line in _enabled_lines())


def _enabled_lines() -> Iterator[str]:
    tracing = tracer()
    selections = [(ops, ops.selection()) for ops in tracing.enabled]
    for location in tracing.table.everything().locations():
        wanting = [ops for ops, selection in selections if selection.has(location)]
        if wanting:
            yield _line(location, wanting)


def _line(location: Location, wanting: list[ftrace_ops]) -> str:
    """`name [module] (count) R I D O M` in columns, then the trampoline if there is one ops, else the list walker."""
    registers = " R" if any(ops.flags & FTRACE_OPS_FL_SAVE_REGS for ops in wanting) else "  "
    modify = " I" if any(ops.flags & FTRACE_OPS_FL_IPMODIFY for ops in wanting) else "  "
    head = f"{location} ({len(wanting)}){registers}{modify}  " + "  " + "   "
    if len(wanting) > 1:
        return head + " ->" + _described("dispatch_entry")
    trampoline = ProbeList.ctypes.from_address(location.block.list_at(location.position).address).entry
    callback = _callback(wanting[0])
    return f"{head}\ttramp: {trampoline:#x} ({callback}) ->{callback}"


def _callback(ops: ftrace_ops) -> str:
    """What the kernel would call: the name of the ops' callback."""
    kind = ops.probe.native.kind
    if kind & CALLBACK:
        return symbol_table.describe(ops.probe.native.entry or 0)
    return "fprobe_kprobe_handler+0x0/0x0" if kind & KPROBE_SHARED else "fprobe_handler+0x0/0x0"


def _described(symbol: str) -> str:
    location = symbol_table.locate(tracer().runtime.image.address(symbol))
    return f"{symbol}+0x0/{location.symbol.size:#x}" if location else f"{symbol}+0x0/0x0"
