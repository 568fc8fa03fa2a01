"""Patterns that name libraries or other images: `libz:inflate*`."""

from __future__ import annotations

import ctypes
import ctypes.util
from typing import TYPE_CHECKING

from fprobe.cli.failure import FAILED, Failure
from fprobe.cli.match import Match, Site, Skipped

if TYPE_CHECKING:
    from ftrace.sites.detoured import DetouredBlock
    from sandbox.symbols.disassembly import Line
    from sandbox.symbols.table import Symbol


def is_named(pattern: str) -> bool:
    """Whether a pattern names an image."""
    return ":" in pattern


def match(pattern: str) -> Match:
    """The functions that a pattern matches; the library is loaded if necessary. Raises Failure if there are none."""
    from ftrace.entries.locate import locate

    load(pattern)
    try:
        located = locate(pattern)
    except LookupError as error:
        raise Failure(str(error.args[0])) from None
    except OSError as error:
        raise Failure(f"{pattern}: {error.strerror or error}", FAILED) from None
    found = Match()
    found.sites = [Site(location.function, location.ip) for location in located.selection.locations()]
    found.skipped = [Skipped(name, reason) for name, reason in located.skipped]
    return found


def symbols(pattern: str) -> list[Symbol]:
    """The functions that a pattern matches, whether they can be probed or not. Raises Failure if there are none."""
    from ftrace.filters.resolve import resolve

    match(pattern)
    return [found.function for found in resolve(pattern)]


def load(pattern: str) -> None:
    """Load the library that a pattern names, if it is not loaded and can be found."""
    from sandbox.images.sources import images

    owner = pattern.lstrip("!").partition(":")[0]
    if any(owner in image.names for image in images()) or any(special in owner for special in "*?["):
        return
    name = ctypes.util.find_library(owner.removeprefix("lib")) or owner
    try:
        ctypes.CDLL(name)
    except OSError:
        return  # `match` reports the error in more detail


def reason(symbol: Symbol) -> str:
    """Why a function that `match` has found cannot be probed; '' if it can."""
    from ftrace.entries.locate import locations_of
    from ftrace.filters.resolve import Found
    from sandbox.images.sources import image_at

    image = image_at(symbol.address)
    skipped = locations_of([Found(image, symbol)]).skipped if image is not None else []
    return skipped[0].reason if skipped else ""


def facts(symbol: Symbol) -> dict[str, str]:
    """How a library function that `match` has found is probed."""
    try:
        block, index = _detoured(symbol)
    except LookupError:
        return {}
    code = block.text_of(index)
    return {
        "entry": f"{block.mechanisms[index].value}, over {code.hex(' ')}",
        "return": _return_of(block, index),
    }


def _return_of(block: DetouredBlock, index: int) -> str:
    block.examine_returns([index])
    why = block.reason(index)
    return (
        f"cannot be hooked: {why}" if why else "balanced: the stub calls the body; every register and flag is preserved"
    )


def detour(site: Site) -> tuple[int, list[Line]]:
    """The code that the patched entry of a function leads to: its address, and its instructions."""
    from ftrace.x86_64.entry_detour import DETOUR_SIZE, ENTRY
    from sandbox.symbols.disassembly import disassemble

    block, index = _detoured(site.symbol)
    start = block.entry_at(index)
    code = ctypes.string_at(start, DETOUR_SIZE - ENTRY).rstrip(b"\xcc")
    return start, disassemble(code, start, lambda _address: None)


def patched(symbol: Symbol, jump: list[Line], before: list[Line]) -> list[Line]:
    """A function while it is probed: the jump at its entry, then its remaining lines as loaded."""
    block, index = _detoured(symbol)
    return [*jump[:1], *(line for line in before if line.address >= symbol.address + block.owned_at(index))]


def _detoured(symbol: Symbol) -> tuple[DetouredBlock, int]:
    """The location of a function that `match` has found. Raises LookupError if it has a stub instead of a detour."""
    from ftrace.sites.detoured import DetouredBlock
    from ftrace.tracer import tracer

    location = tracer().table.location(symbol.address)
    if location is None or not isinstance(location.block, DetouredBlock):
        raise LookupError(f"{symbol} has no detour")
    return location.block, location.position
