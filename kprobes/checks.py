"""Locating a probe and checking its place, in the order of register_kprobe()."""

from __future__ import annotations

import ctypes
import errno
from bisect import bisect_right
from typing import TYPE_CHECKING

from ftrace.core.sites.refusals import runs_python
from ftrace.core.tracer import tracer
from kprobes import blacklist, vforks
from kprobes.jump.functions import function_around
from kprobes.place import Place, places
from kprobes.x86_64.classify import classify
from sandbox.images.near_misses import no_symbol
from sandbox.images.process_text import module_text_at, symbol_at, symbol_named, text_at
from sandbox.loading.module import ModuleState
from sandbox.process.integers import INT_MAX, U64_MAX, integer
from sandbox.x86_64.encoding import ENDBR64
from sandbox.x86_64.instruction import decode

if TYPE_CHECKING:
    from kprobes.jump.safety import Function
    from sandbox.symbols.table import Symbol


preemptible = False
"""If true, nothing is boosted, as in a kernel with CONFIG_PREEMPTION. Takes effect when an address is first probed."""


def locate(addr: int | None, symbol_name: str | None, offset: int) -> Place:
    """The place of an address or symbol: the one that has been probed before, or a new one.

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
    address, is_entry = _adjusted(wanted, symbol)
    return places.get(address) or Place(address, symbol, is_entry)


def _address_of(name: str) -> int:
    try:
        return symbol_named(name).address
    except LookupError:
        raise OSError(errno.ENOENT, no_symbol(name)) from None


def _adjusted(address: int, symbol: Symbol) -> tuple[int, bool]:
    """The address at which the probe is placed, and whether that is the function's entry.

    A leading endbr64 has to stay the first instruction, for indirect calls: a probe on it moves to the next one, which therefore
    counts as the entry.
    """
    offset = address - symbol.address
    skip = len(ENDBR64)
    if symbol.size > skip and ctypes.string_at(symbol.address, skip) == ENDBR64:
        is_entry = offset in (0, skip)
        return symbol.address + skip if is_entry else address, is_entry
    return address, offset == 0


def check(place: Place) -> None:
    """Find the text and the module of a place. Raises OSError if it must not be probed, as check_kprobe_address_safe()."""
    reason = blacklist.within_kprobe_blacklist(place.address, place.symbol)
    if reason:
        raise OSError(errno.EINVAL, f"{place} cannot be probed: {reason}")
    module, text = module_text_at(place.address) or (None, None)
    if module is not None and module.state in (ModuleState.GOING, ModuleState.GONE):
        raise OSError(errno.ENOENT, f"{place} is in module {module.name!r}, which is being unloaded")
    if place.symbol.section.startswith((".data", ".bss", ".rodata")):
        raise OSError(errno.EINVAL, f"{place} is data, not code")
    if text is None:
        vforks.make_safe()
    if place.address not in places:
        place.module, place.text = module, text or text_at(place.address)
        location = tracer().table.location(place.address)
        place.on_ftrace = (
            location is not None and location.ip == place.address and location.block.is_live(location.position)
        )


def check_python(place: Place, calls_python: bool, allowed: bool) -> None:
    """Raise OSError(EINVAL) for a Python handler in the C library, the dynamic loader or the interpreter.

    A thread there may hold a lock that the handler needs, or be in the middle of a change: it would deadlock with itself.
    """
    if calls_python and not allowed and place.module is None and runs_python(place.symbol.module):
        raise OSError(
            errno.EINVAL,
            f"{place} cannot have a Python handler (python-unsafe): Python itself runs on {place.symbol.module}; give a "
            "native handler, or python_unsafe=True",
        )


def check_post(place: Place, post_handler: object) -> None:
    """Raise OSError(EBUSY) for a post_handler at an ftrace location of a library, whose first instruction has been moved."""
    if place.on_ftrace and post_handler is not None and place.module is None:
        raise OSError(
            errno.EBUSY,
            f"{place} is an ftrace location, because an fprobe is or was on it; a kprobe there takes no post_handler",
        )


def prepare(place: Place) -> None:
    """Allocate what the first probe of a place needs. Raises OSError if its instruction cannot be probed."""
    if place.on_ftrace:
        place.allocate()
    else:
        _prepare_instruction(place)
    place.enlist()


def _prepare_instruction(place: Place) -> None:
    symbol = place.symbol
    function = function_around(place.address, symbol.address, max(symbol.end, place.address + 1))
    code = function.instruction_at(place.address)
    if not code:
        raise OSError(errno.EILSEQ, f"{place} is not the first byte of an instruction{_around(place, function)}")
    try:
        insn = decode(code, place.address)
    except ValueError as error:
        raise OSError(errno.EILSEQ, str(error)) from None
    found = classify(insn, preemptible=preemptible)
    if found.error:
        raise OSError(found.error, f"{place} cannot be probed: {found.reason}{_around(place, function)}")
    place.allocate()
    try:
        place.allocate_slot(insn, found)
    except OverflowError as overflow:
        raise OSError(errno.EINVAL, f"{place} cannot be probed: {overflow}") from None


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
