"""Native handlers of the user in a run: their maps are allocated in the launcher's file, from which the launcher prints them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from fprobe.handlers.native import NativeHandlers, load_file
from fprobe.run import session
from fprobe.run.results import Process
from fprobe.run.table import Table
from ftrace.maps.areas import Map, memory
from ftrace.maps.listing import lines
from sandbox.memory.mappings import PAGE
from sandbox.threads.counters import used

_CHUNK = 1 << 20
Loaded = tuple[NativeHandlers, dict[str, tuple[int, int]]]


def load(text: str, table: Table) -> Loaded:
    """In the program: load the handlers. Also returns offset and size of each of their maps, by name.

    Raises what `load_file` raises, and MemoryError if the maps exceed the memory reserved for them.
    """
    start = table.use_for_maps()
    sizes: dict[int, int] = {}
    before, memory.take = memory.take, _taker(start, sizes)
    try:
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


def shown(text: str, process: Process, counts: int) -> Iterator[str]:
    """In the launcher: the contents of a process's maps. Executes the file again, to get their types."""
    if not process.parts or not process.maps:
        return
    maps = load_file(text).maps
    start = session.HEADER + process.parts[-1] * session.PART + session.MAPS_AT
    for name, (offset, size) in process.maps.items():
        contents = maps[name]
        assert isinstance(contents, Map)
        contents.clear()
        contents.load(_parts(counts, start + offset, size))
        yield f"{name}:"
        yield from lines(contents, lambda key: str(process.names.place(key)) if process.names.knows(key) else str(key))


def _parts(counts: int, start: int, size: int) -> Iterator[tuple[int, bytes]]:
    """The allocated parts of [start, start + size): offset and contents of each."""
    for low, high in used(counts, start, start + size):
        for at in range(low, high, _CHUNK):
            yield at - start, os.pread(counts, min(_CHUNK, high - at), at)
