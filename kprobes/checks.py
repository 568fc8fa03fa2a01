"""Where a probe goes and whether it may be there, in the order of register_kprobe(); the blacklist of kprobes."""

from __future__ import annotations

import ctypes
import errno
from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from ftrace.core.sites.refusals import called_by_hits, named_refusal, runs_python
from ftrace.core.tracer import tracer
from kprobes import vforks
from kprobes.breakpoint.patching import kprobe_mutex
from kprobes.jump.functions import function_around, return_refusal
from kprobes.place import Place, places
from kprobes.x86_64.classify import classify
from sandbox.images.near_misses import no_symbol
from sandbox.images.process_text import JIT_NAMES, module_text_at, no_function, symbol_at, symbol_named, text_at
from sandbox.loading.module import Module, ModuleState, loaded_modules
from sandbox.process.integers import INT_MAX, U64_MAX, integer
from sandbox.symbols.table import Symbol, symbol_table
from sandbox.x86_64.encoding import ENDBR64
from sandbox.x86_64.instruction import decode

if TYPE_CHECKING:
    from kprobes.jump.safety import Function


NOKPROBE = "nokprobe"
"""The LLVM attribute of a function that must not be probed."""
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
    address = base + integer("offset", offset, -INT_MAX, INT_MAX, errno.ENOENT) if offset != 0 else base
    symbol = symbol_at(address)
    if symbol is None:
        raise OSError(errno.ENOENT, f"{_given(symbol_name, offset, address)} is not in a known function")
    address, is_entry = _adjusted(address, symbol)
    return places.get(address) or Place(address, symbol, is_entry)


def _given(symbol_name: str | None, offset: int, address: int) -> str:
    """A place as it was given, with its address."""
    if not symbol_name:
        return f"{address:#x}"
    size = symbol_named(symbol_name).size
    return f"{symbol_name}{offset:+#x} ({address:#x}{f'; {symbol_name} has {size} bytes' if size else ''})"


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
    reason = within_kprobe_blacklist(place.address, place.symbol)
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
    verdict = classify(insn, preemptible=preemptible)
    if verdict.error:
        raise OSError(verdict.error, f"{place} cannot be probed: {verdict.reason}{_around(place, function)}")
    place.allocate()
    try:
        place.allocate_slot(insn, verdict)
    except OverflowError as overflow:
        raise OSError(errno.EINVAL, f"{place} cannot be probed: {overflow}") from None


def _around(place: Place, function: Function) -> str:
    """The disassembly around the place, with a caret."""
    address = place.address
    following = bisect_right(function.starts, address)
    lines = []
    for at in function.starts[max(following - 3, 0) : following]:
        insn = decode(function.code_at(at), at)
        lines.append(f"\n  {at:#x}  {insn.code.hex(' '):<30} {insn.text}")
        if at <= address < insn.end:
            lines.append("\n  " + " " * (len(f"{at:#x}") + 2 + 3 * (address - at)) + "^")
    return ":" + "".join(lines) if lines else ""


# -- the blacklist ------------------------------------------------------------------------------------------------------


class BlacklistEntry(NamedTuple):
    """A range of code that must not be probed; `end` is exclusive. `owner`: the module that listed it."""

    start: int
    end: int
    name: str
    owner: str


_blacklist: list[BlacklistEntry] = []


def blacklist() -> list[BlacklistEntry]:
    """Every entry, in the order of insertion."""
    _hit_path()
    return list(_blacklist)


def kprobe_add_ksym_blacklist(address: int) -> int:
    """Forbid probes in the function at `address`; returns its size in bytes. Raises OSError(EINVAL) if no function is there."""
    address = integer("address", address, 0, U64_MAX)
    symbol = symbol_at(address)
    if symbol is None:
        raise OSError(errno.EINVAL, f"{address:#x} is not in a known function")
    _forbid(symbol)
    return symbol.size


def kprobe_add_area_blacklist(start: int, end: int) -> None:
    """Forbid probes in the functions that begin in [start, end)."""
    address = start
    while address < end:
        symbol = symbol_at(address)
        address = max(address + 1, symbol.end if symbol else 0)
        if symbol is not None:
            _forbid(symbol)


def _forbid(symbol: Symbol) -> None:
    entry = BlacklistEntry(symbol.address, symbol.end, symbol.name, symbol.module)
    with kprobe_mutex:
        if entry not in _blacklist:
            _blacklist.append(entry)


def within_kprobe_blacklist(address: int, symbol: Symbol | None = None) -> str:
    """Why `address` must not be probed; '' if it may be. `symbol`: the function that contains it, if known."""
    _hit_path()
    for entry in _blacklist:
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
    if symbol.module in loaded_modules or symbol.module in JIT_NAMES:
        return False
    return symbol_table.locate(symbol.address) is not None


def _by_base_name(symbol: Symbol) -> str:
    base, dot, _ = symbol.name.partition(".")
    if not dot or not base:
        return ""
    listed = any(entry.name == base and entry.owner == symbol.module for entry in _blacklist)
    return f"{base}, of which {symbol.name} is a part, is on the blacklist of kprobes" if listed else ""


def kretprobe_blacklist(symbol: Symbol) -> str:
    """Why the returns of a function cannot be probed; '' if they can."""
    if symbol.module in JIT_NAMES:
        return return_refusal(symbol.address, symbol.end)
    by_name = named_refusal(symbol.name)
    if by_name:
        return by_name
    module = loaded_modules.get(symbol.module)
    if module and symbol.name in module.functions_with("returns_twice"):
        return f"{symbol.name} returns twice"
    if module is not None and not module.reads_frame:
        return ""
    return no_function(symbol) or return_refusal(symbol.address, symbol.end)


def _hit_path() -> None:
    with kprobe_mutex:
        if not _done:
            _forbid_hit_path()
            _done.append(True)


def _forbid_hit_path() -> None:
    for address in called_by_hits():
        symbol = symbol_at(address)
        if symbol is not None:
            _forbid(symbol)


_done: list[bool] = []


def blacklist_of_module(event: ModuleState, module: Module) -> None:
    """Add a module's own blacklist when the module is loaded, and remove it when the module is unloaded."""
    if event is ModuleState.COMING:
        for name in sorted(module.functions_with(NOKPROBE)):
            if name in module:
                _forbid(module.symbol(name))
    elif event is ModuleState.GOING:
        with kprobe_mutex:
            _blacklist[:] = [entry for entry in _blacklist if entry.owner != module.name]
