"""Native handlers of the user in a run: their maps are allocated in the launcher's file, from which the launcher prints them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fprobe.handlers.native_file import NativeHandlers, load_file, split
from fprobe.run import session
from fprobe.run.own_modules import importing_from
from fprobe.run.results import Process
from fprobe.run.table import Table
from ftrace.maps.areas import Map, memory
from ftrace.maps.hash import Hash
from ftrace.maps.listing import entries, lines
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


class Contents:
    """In the launcher: the maps of one process. `maps`: maps of the same types, which take their contents."""

    def __init__(self, process: Process, maps: Mapping[str, Any], counts: int) -> None:
        self._process, self._maps, self._counts = process, maps, counts
        self._start = session.HEADER + process.parts[-1] * session.PART + session.MAPS_AT

    def lines(self) -> Iterator[str]:
        """The contents as text."""
        for name, contents in self._loaded():
            yield f"{name}:"
            yield from lines(contents, lambda key: self._described(key) or str(key))

    def objects(self) -> Iterator[dict[str, Any]]:
        """The contents as objects for JSON. A key that is an address of the process has its `symbol`, too."""
        for name, contents in self._loaded():
            found = list(entries(contents))
            if isinstance(contents, Hash):
                found = [entry | self._symbol(entry["key"]) for entry in found]
            yield {"name": name, "entries": found, "dropped": contents.dropped}

    def _loaded(self) -> Iterator[tuple[str, Map]]:
        for name, (offset, size) in self._process.maps.items():
            contents = self._maps[name]
            assert isinstance(contents, Map)
            contents.clear()
            contents.load(_parts(self._counts, self._start + offset, size))
            yield name, contents

    def _symbol(self, key: int) -> dict[str, str]:
        described = self._described(key)
        return {"symbol": described} if described else {}

    def _described(self, key: int) -> str:
        return str(self._process.names.place(key)) if self._process.names.knows(key) else ""


def read_maps(text: str, processes: Sequence[Process], counts: int) -> dict[int, Contents]:
    """In the launcher: the maps of each process that has any. Executes the file again, to get their types."""
    with_maps = [process for process in processes if process.parts and process.maps]
    if not with_maps:
        return {}
    maps = load_file(text).maps
    return {process.pid: Contents(process, maps, counts) for process in with_maps}


def _parts(counts: int, start: int, size: int) -> Iterator[tuple[int, bytes]]:
    """The allocated parts of [start, start + size): offset and contents of each."""
    for low, high in used(counts, start, start + size):
        for at in range(low, high, _CHUNK):
            yield at - start, os.pread(counts, min(_CHUNK, high - at), at)
