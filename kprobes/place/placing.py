"""Locating a probe and checking its place, in the order of register_kprobe()."""

from __future__ import annotations

import ctypes
import errno
from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from ftrace.core.sites.refusals import runs_python
from ftrace.core.tracer import tracer
from kprobes.place import aggregate, blacklist
from kprobes.place.aggregate import Aggregate
from kprobes.place.functions import function_around
from kprobes.x86_64.classify import classify
from sandbox.images.near_misses import no_symbol
from sandbox.images.process_text import module_text_at, symbol_at, symbol_named, text_at
from sandbox.loading.module import ModuleState
from sandbox.process.integers import INT_MAX, U64_MAX, integer
from sandbox.x86_64.encoding import ENDBR64, NOP5
from sandbox.x86_64.instruction import decode

if TYPE_CHECKING:
    from kprobes.jump.safety import Function
    from sandbox.loading.module import Module
    from sandbox.memory.mappings import TextMapping
    from sandbox.symbols.table import Symbol


class Place(NamedTuple):
    """An address in a function. `is_entry`: whether it is the function's entry."""

    address: int
    symbol: Symbol
    is_entry: bool

    def __str__(self) -> str:
        return f"{self.symbol.name}+{self.address - self.symbol.address:#x} ({self.address:#x})"


class Ground(NamedTuple):
    """The code that a place is in. `text`: the mapping through which it is patched. `module`: None in a library."""

    text: TextMapping
    module: Module | None
    on_ftrace: bool


def locate(addr: int | None, symbol_name: str | None, offset: int) -> Place:
    """The place of an address or symbol, with the function that contains it.

    Raises OSError: EINVAL if both or neither are given, ENOENT for an unknown symbol or an address in no function.
    """
    if bool(addr) == bool(symbol_name):
        given = "both addr and symbol_name are" if addr else "neither addr nor symbol_name is"
        raise OSError(errno.EINVAL, f"{given} given; give exactly one of them")
    base = _address_of(symbol_name) if symbol_name else integer("addr", addr, 0, U64_MAX)
    wanted = base + integer("offset", offset, -INT_MAX, INT_MAX, errno.ENOENT)
    symbol = symbol_at(wanted)
    if symbol is None:
        raise OSError(errno.ENOENT, f"{wanted:#x} is not in a known function")
    return _adjusted(wanted, symbol)


def _address_of(name: str) -> int:
    try:
        return symbol_named(name).address
    except LookupError:
        raise OSError(errno.ENOENT, no_symbol(name)) from None


def _adjusted(address: int, symbol: Symbol) -> Place:
    """A probe on a leading endbr64 moves to the next instruction, which counts as the function's entry."""
    offset = address - symbol.address
    skip = len(ENDBR64)
    if symbol.size > skip and ctypes.string_at(symbol.address, skip) == ENDBR64:
        entry = offset in (0, skip)
        return Place(symbol.address + skip if entry else address, symbol, entry)
    return Place(address, symbol, offset == 0)


def check(place: Place) -> Ground:
    """The text and module of a place. Raises OSError if it must not be probed, as check_kprobe_address_safe()."""
    location = tracer().table.location(place.address)
    on_ftrace = location is not None and location.ip == place.address and location.block.is_live(location.position)
    reason = blacklist.within_kprobe_blacklist(place.address, place.symbol)
    if reason:
        raise OSError(errno.EINVAL, f"{place} cannot be probed: {reason}")
    module, text = module_text_at(place.address) or (None, None)
    if module is not None and module.state in (ModuleState.GOING, ModuleState.GONE):
        raise OSError(errno.ENOENT, f"{place} is in module {module.name!r}, which is being unloaded")
    if place.symbol.section.startswith((".data", ".bss", ".rodata")):
        raise OSError(errno.EINVAL, f"{place} is data, not code")
    return Ground(text or text_at(place.address), module, on_ftrace)


def check_python(place: Place, calls_python: bool, allowed: bool) -> None:
    """Raise OSError(EINVAL) for a Python handler in the C library, the dynamic loader or the interpreter.

    A thread there may hold a lock that the handler needs, or be in the middle of a change: it would deadlock with itself.
    """
    if calls_python and not allowed and runs_python(place.symbol.module):
        raise OSError(
            errno.EINVAL,
            f"{place} cannot have a Python handler (python-unsafe): Python itself runs on {place.symbol.module}; give a "
            "native handler, or python_unsafe=True",
        )


def prepare(place: Place, ground: Ground) -> Aggregate:
    """The aggregate of an address that has not been probed before. Raises OSError if it cannot be."""
    made = Aggregate(place.address, place.symbol, ground.text, ground.module)
    if ground.on_ftrace:
        made.on_ftrace = True
        made.record.length, made.record.original = len(NOP5), NOP5[0]
        made.enlist()
        return made
    function = function_around(place.address, place.symbol.address, max(place.symbol.end, place.address + 1))
    code = function.instruction_at(place.address)
    if not code:
        raise OSError(errno.EILSEQ, f"{place} is not the first byte of an instruction{_around(place, function)}")
    try:
        insn = decode(code, place.address)
    except ValueError as error:
        raise OSError(errno.EILSEQ, str(error)) from None
    found = classify(insn, preemptible=aggregate.preemptible)
    if found.error:
        raise OSError(found.error, f"{place} cannot be probed: {found.reason}{_around(place, function)}")
    try:
        made.prepare(insn, found)
    except OverflowError as overflow:
        raise OSError(errno.EINVAL, f"{place} cannot be probed: {overflow}") from None
    made.enlist()
    return made


def _around(place: Place, function: Function) -> str:
    """The disassembly around the place, with a caret."""
    address = place.address
    known = bisect_right(function.starts, address)
    lines = []
    for at in function.starts[max(known - 3, 0) : known]:
        insn = decode(function.code_at(at), at)
        lines.append(f"\n  {at:#x}  {insn.code.hex(' '):<30} {insn.text}")
        if at <= address < insn.end:
            lines.append("\n  " + " " * (len(f"{at:#x}") + 2 + 3 * (address - at)) + "^")
    return ":" + "".join(lines) if lines else ""
