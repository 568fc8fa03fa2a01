"""Loads native handlers of the user. Their maps are allocated in the launcher's file, from which the launcher shows them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fprobe.handlers.native_file import NativeHandlers, load_file, split
from fprobe.run import session
from fprobe.run.tracee.own_modules import importing_from
from fprobe.run.tracee.table import Table
from ftrace.core.maps.areas import Map, memory
from sandbox.memory.mappings import PAGE

Loaded = tuple[NativeHandlers, dict[str, tuple[int, int]]]


def load(text: str, table: Table) -> Loaded:
    """Load the handlers. Also returns offset and size of each of their maps, by name.

    Raises what `load_file` raises, and MemoryError if the maps exceed the memory reserved for them.
    """
    start = table.use_for_maps()
    sizes: dict[int, int] = {}
    before, memory.take = memory.take, _taker(start, sizes)
    try:
        with importing_from(Path(split(text)[0]).parent):
            handlers = load_file(text)
    finally:
        memory.take = before
    maps = {name: each.address for name, each in handlers.maps.items() if isinstance(each, Map)}
    return handlers, {name: (address - start, sizes[address]) for name, address in maps.items() if address in sizes}


def _taker(start: int, sizes: dict[int, int]) -> Callable[[int], int]:
    def take(size: int) -> int:
        address = start + sum(-(-taken // PAGE) * PAGE for taken in sizes.values())
        if address + size > start + session.MAPS:
            raise MemoryError(f"the maps of native handlers exceed {session.MAPS >> 30} GiB; make them smaller")
        sizes[address] = size
        return address

    return take
