"""The unwind tables of modules and shared libraries, in one native CodeMap for stack walks."""

from __future__ import annotations

import ctypes
import threading
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, NamedTuple

from ftrace.core.runtime import runtime
from ftrace.hit.unwind.walk import CodeMap, CodeRegion
from sandbox.elf.ehframe import table_in_memory
from sandbox.elf.unwinder import find_fde
from sandbox.loading.module import Module, ModuleState, modules, register_module_notifier
from sandbox.memory import mappings
from sandbox.process import fork
from sandbox.process.once import once
from sandbox.symbols.libraries import libraries

MAX_REGIONS = 1 << 14
_MAP_SIZE = mappings.PAGE + CodeRegion.size * MAX_REGIONS


class Region(NamedTuple):
    """Code [start, end). `pairs`: address of its table, with entries relative to `base`. `keep`: the owner of the table."""

    start: int
    end: int
    base: int = 0
    pairs: int = 0
    entries: int = 0
    keep: Any = None


class UnwindTables:
    """Keeps the CodeMap up to date while stacks are recorded.

    The map is changed in place. A walk during a change may end early, but is safe: all of its reads are guarded.
    """

    def __init__(self) -> None:
        self._lock = fork.renew(threading.RLock())  # also a handler of this thread may ask
        self._of_modules: dict[Module, list[Region]] = {}
        self._map = 0
        self._published: tuple[Any, ...] = ()
        register_module_notifier(self._module_event)

    def refresh(self) -> None:
        """Add code that has been loaded since the last refresh."""
        with self._lock:
            if not self._map:
                self._map = mappings.reserve(_MAP_SIZE)
                image = runtime().image
                image.variable("unwind_own_text").value, image.variable("unwind_own_text_end").value = image.text
                image.variable("unwind_code_map").value = self._map
            loaded = (*libraries(), *modules())
            if loaded == self._published:
                return
            known = {module: self._of_modules.get(module) or _module_regions(module) for module in modules()}
            self._publish([*_library_regions(), *(region for found in known.values() for region in found)])
            self._of_modules, self._published = known, loaded

    def _publish(self, regions: list[Region]) -> None:
        ordered = sorted(regions, key=lambda region: region[:2])[:MAX_REGIONS]
        words = [word for region in ordered for word in region[:5]]
        count = ctypes.c_uint64.from_address(self._map)
        count.value = 0
        place = self._map + CodeMap.offset("regions")
        ctypes.memmove(place, (ctypes.c_uint64 * len(words))(*words), 8 * len(words))
        count.value = len(ordered)

    def _module_event(self, event: ModuleState, _module: Module) -> None:
        if self._map and event is ModuleState.COMING:
            self.refresh()


def _library_regions() -> Iterator[Region]:
    for library in libraries():
        table = table_in_memory(library.unwind_table)
        for start, end in library.text:
            yield Region(start, end, *table)


def _module_regions(module: Module) -> list[Region]:
    """The regions of a module that is not a shared library. Its FDEs are those that the JIT engine has registered."""
    loaded = sorted(span for library in libraries() for span in library.text)
    found = []
    for text in module.texts:
        at = bisect_right(loaded, (text.base, 1 << 64)) - 1
        if at < 0 or loaded[at][1] <= text.base:
            found.append(_region_of(module, text.base, text.end))
    return found


def _region_of(module: Module, start: int, end: int) -> Region:
    spans = {find_fde(symbol.address) for symbol in module.functions if start <= symbol.address < end}
    pairs = sorted(span for span in spans if span is not None)
    words = (ctypes.c_int32 * (2 * len(pairs)))(*(word - start for pair in pairs for word in pair))
    return Region(start, end, start, ctypes.addressof(words), len(pairs), words)


@once
def unwind_tables() -> UnwindTables:
    """The process-wide tables; created when the first stack is to be recorded."""
    return UnwindTables()
