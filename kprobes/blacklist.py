"""Functions that must not be probed: NOKPROBE functions and the code of the hit path."""

from __future__ import annotations

import errno
from typing import NamedTuple

from ftrace.core.sites.refusals import called_by_hits, named_refusal
from kprobes.breakpoint.patching import kprobe_mutex
from kprobes.jump.functions import return_refusal
from sandbox.images.process_text import JIT_NAMES, no_function, symbol_at
from sandbox.loading.module import Module, ModuleState, is_loaded, modules
from sandbox.process.integers import U64_MAX, integer
from sandbox.symbols.table import Symbol, symbol_table

NOKPROBE = "nokprobe"
"""The LLVM attribute of a function that must not be probed."""


class Entry(NamedTuple):
    """A range of code that must not be probed; `end` is exclusive. `owner`: the module that listed it."""

    start: int
    end: int
    name: str
    owner: str


_entries: list[Entry] = []


def entries() -> list[Entry]:
    """Every entry, in the order of insertion."""
    _hit_path()
    return list(_entries)


def kprobe_add_ksym_blacklist(address: int) -> int:
    """Forbid probes in the function at `address`; returns its size in bytes. Raises OSError(EINVAL) if no function is there."""
    address = integer("address", address, 0, U64_MAX)
    symbol = symbol_at(address)
    if symbol is None:
        raise OSError(errno.EINVAL, f"{address:#x} is not in a known function")
    _add(symbol)
    return symbol.size


def kprobe_add_area_blacklist(start: int, end: int) -> None:
    """Forbid probes in the functions that begin in [start, end)."""
    address = start
    while address < end:
        symbol = symbol_at(address)
        address = max(address + 1, symbol.end if symbol else 0)
        if symbol is not None:
            _add(symbol)


def _add(symbol: Symbol) -> None:
    entry = Entry(symbol.address, symbol.end, symbol.name, symbol.module)
    with kprobe_mutex:
        if entry not in _entries:
            _entries.append(entry)


def within_kprobe_blacklist(address: int, symbol: Symbol | None = None) -> str:
    """Why `address` must not be probed; '' if it may be. `symbol`: the function that contains it, if known."""
    _hit_path()
    for entry in _entries:
        if entry.start <= address < entry.end:
            return f"{entry.name} is on the blacklist of kprobes"
    symbol = symbol or symbol_at(address)
    if symbol is None:
        return ""
    if _is_ours(symbol):
        return f"{symbol.name} belongs to the hit path or to a handler"
    return _by_base_name(symbol)


def _is_ours(symbol: Symbol) -> bool:
    """Whether it is in a native image: the hit path or a handler."""
    if is_loaded(symbol.module) or symbol.module in JIT_NAMES:
        return False
    return symbol_table.locate(symbol.address) is not None


def _by_base_name(symbol: Symbol) -> str:
    base, dot, _ = symbol.name.partition(".")
    if not dot or not base:
        return ""
    listed = any(entry.name == base and entry.owner == symbol.module for entry in _entries)
    return f"{base}, of which {symbol.name} is a part, is on the blacklist of kprobes" if listed else ""


def kretprobe_blacklist(symbol: Symbol) -> str:
    """Why the returns of a function cannot be probed; '' if they can."""
    if symbol.module in JIT_NAMES:
        return return_refusal(symbol.address, symbol.end)
    by_name = named_refusal(symbol.name)
    if by_name:
        return by_name
    module = next((module for module in modules() if module.name == symbol.module), None)
    if module and symbol.name in module.functions_with("returns_twice"):
        return f"{symbol.name} returns twice"
    if module is not None and not module.reads_frame:
        return ""
    return no_function(symbol) or return_refusal(symbol.address, symbol.end)


def _hit_path() -> None:
    with kprobe_mutex:
        if not _done:
            _add_hit_path()
            _done.append(True)


def _add_hit_path() -> None:
    for address in called_by_hits():
        symbol = symbol_at(address)
        if symbol is not None:
            _add(symbol)


_done: list[bool] = []


def module_event(event: ModuleState, module: Module) -> None:
    """Add a module's own blacklist when the module is loaded, and remove it when the module is unloaded."""
    if event is ModuleState.COMING:
        for name in sorted(module.functions_with(NOKPROBE)):
            if name in module:
                _add(module.symbol(name))
    elif event is ModuleState.GOING:
        with kprobe_mutex:
            _entries[:] = [entry for entry in _entries if entry.owner != module.name]
