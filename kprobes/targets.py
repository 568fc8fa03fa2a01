"""Targets of attachments: names, addresses, globs, and lists of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ftrace.core.filters.image_functions import find_functions, is_compiled, may_be_compiled
from sandbox.images.process_text import JIT_NAMES, is_symbol
from sandbox.symbols.names import is_glob

_PLACE = re.compile(r"(?P<symbol>.+?)(?:\+(?P<offset>0x[0-9a-fA-F]+|\d+))?$")

Target = str | int | Sequence[str | int]
"""`symbol`, `symbol+0x10`, `module:symbol`, `libz:deflate+8`, `numba:mine.sumsq`; a glob of symbols, `vfs_*`, `libz:crc32*`;
an address; or a list of these."""


class Where(NamedTuple):
    """The place of a kprobe, as fields of `kprobe`. `chosen`: by a glob, not by name. `shown`: its name in messages."""

    symbol_name: str | None = None
    addr: int | None = None
    offset: int = 0
    chosen: bool = False
    shown: str = ""

    def __str__(self) -> str:
        return self.symbol_name or self.shown or f"{self.addr:#x}"

    def fields(self) -> dict[str, Any]:
        """As arguments of `kprobe` and `kretprobe`."""
        return {"symbol_name": self.symbol_name, "addr": self.addr, "offset": self.offset}


def places(target: Target) -> list[Where]:
    """Every place that `target` names now, without repetitions.

    Raises ValueError for an empty list, LookupError for a glob that matches nothing, TypeError for another type.
    """
    items = items_of(target)
    if not items:
        raise ValueError("the list of targets is empty: give at least one symbol, symbol+offset or address")
    return list(dict.fromkeys(where for item in items for where in _places_of(item)))


def items_of(target: Target) -> Sequence[str | int]:
    """What `target` lists, or itself if it is no list."""
    if isinstance(target, (str, int)):
        return [target]
    return list(target) if isinstance(target, Iterable) else [target]


def has_glob(target: Target) -> bool:
    """Whether the places that `target` names depend on the code that is loaded."""
    return any(isinstance(item, str) and _may_be_several(item) for item in items_of(target))


def _may_be_several(name: str) -> bool:
    """Whether it may name several functions: a pattern, or a function of a JIT compiler, which may have many copies."""
    return is_glob(name) or is_compiled(name)


def is_followed(target: Target) -> bool:
    """Whether `target` names code of a JIT compiler (`numba:...`), more of which may be compiled later."""
    return bool(compiled_in(target))


def compiled_in(target: Target) -> list[str]:
    """What `target` lists of code of JIT compilers."""
    return [item for item in items_of(target) if isinstance(item, str) and is_compiled(item)]


def may_follow(item: str | int) -> bool:
    """Whether it may be missing now, because it may be compiled later."""
    return isinstance(item, str) and is_compiled(item) and may_be_compiled(symbol_of(item))


def symbol_of(item: str) -> str:
    """The symbol or glob of a place, without the offset."""
    return _split(item)[0]


def _split(item: str) -> tuple[str, int]:
    """The symbol or glob, and the offset."""
    if is_symbol(item):
        return item, 0
    match = _PLACE.match(item)
    if match is None:
        raise ValueError(f"{item!r} is not a place; write a symbol, or symbol+offset")
    return match["symbol"], int(match["offset"] or "0", 0)


def _places_of(item: str | int) -> Iterator[Where]:
    if isinstance(item, int) and not isinstance(item, bool):
        yield Where(addr=item)
        return
    if not isinstance(item, str):
        raise TypeError(
            f"{item!r} is not a target; give a symbol, symbol+offset, a glob, an address, or a list of them"
        )
    symbol, offset = _split(item)
    if _may_be_several(symbol):
        yield from _matching(symbol, offset)
    else:
        yield Where(symbol, offset=offset)


def _matching(glob: str, offset: int) -> Iterator[Where]:
    """The functions that a glob matches, image by image and by address."""
    found = [each.function for each in find_functions(glob)]
    bearers = Counter((symbol.module, symbol.name) for symbol in found)
    for symbol in found:
        unique = bearers[symbol.module, symbol.name] == 1 and symbol.module not in JIT_NAMES
        shown = f"{symbol.module}:{symbol.name}"
        by_name = unique and "+" not in symbol.name
        yield Where(shown if by_name else None, None if by_name else symbol.address, offset, True, shown)
