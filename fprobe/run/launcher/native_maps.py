"""Maps of the user's native handlers: read from the parts of the processes that have filled them, and shown."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fprobe.handlers.native_file import load_file
from fprobe.run import session
from fprobe.run.launcher.process import Process
from ftrace.core.maps.areas import Map
from ftrace.core.maps.hash import Hash
from ftrace.core.maps.listing import entries, map_lines
from sandbox.threads.counters import used

_CHUNK = 1 << 20


class Contents:
    """The maps of one process. `maps`: maps of the same types, which take their contents."""

    def __init__(self, process: Process, maps: Mapping[str, Any], counts: int) -> None:
        self._process, self._maps, self._counts = process, maps, counts
        self._start = session.HEADER + process.parts[-1] * session.PART + session.MAPS_AT

    def lines(self) -> Iterator[str]:
        """The contents as text."""
        for name, contents in self._loaded():
            yield f"{name}:"
            yield from map_lines(contents, lambda key: self._described(key) or str(key))

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
    """The maps of each process that has any. Executes the file again, to get their types."""
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
