"""Loads native handlers of the user. Their maps are allocated in the launcher's file, from which the launcher shows them."""

from __future__ import annotations

from pathlib import Path

from fprobe.handlers.native_file import NativeHandlers, load_file, split
from fprobe.run.tracee.own_modules import importing_from
from fprobe.run.tracee.table import MapSpace
from ftrace.core.maps.areas import Map

Loaded = tuple[NativeHandlers, dict[str, tuple[int, int]]]


def load(text: str, space: MapSpace) -> Loaded:
    """Load the handlers. Also returns offset and size of each of their maps, by name.

    Raises what `load_file` raises, and MemoryError if the maps exceed the memory reserved for them.
    """
    with space.used(), importing_from(Path(split(text)[0]).parent):
        handlers = load_file(text)
    maps = {name: each.address for name, each in handlers.maps.items() if isinstance(each, Map)}
    return handlers, {name: space.where(address) for name, address in maps.items() if address in space.sizes}
