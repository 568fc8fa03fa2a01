"""Locations, sets of them, their text, and their table: every stub of every loaded module, in table order.

A *selection* is the set of locations that an ops is for. A set has a number for each block of sites; its bit i is the i-th site.
"""

from __future__ import annotations

import ctypes
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

from ftrace.core.glob import Pattern, PatternKind, bits_of, index_of, parse
from ftrace.core.probe import CounterLines
from ftrace.core.runtime import Runtime
from ftrace.core.sites.block import SiteBlock
from ftrace.core.sites.lists import ListCache
from ftrace.hit.x86_64.stubs import SITE_SIZE
from sandbox.loading.module import Module
from sandbox.process import hooks
from sandbox.symbols.readable import named
from sandbox.symbols.table import Symbol, owner_text


class Location(NamedTuple):
    """A site that can be patched: struct dyn_ftrace."""

    block: SiteBlock
    position: int

    @property
    def ip(self) -> int:
        """Address of the 5-byte stub."""
        return self.block.addresses[self.position]

    @property
    def function(self) -> Symbol:
        """The function whose entry it is."""
        return self.block.functions[self.position]

    @property
    def name(self) -> str:
        """The function's name."""
        return self.block.names[self.position]

    def __str__(self) -> str:
        return f"{self.name}{owner_text(self.block.name)}"

    @property
    def readable(self) -> str:
        """The same for people: names of C++ and Rust are demangled."""
        return f"{self.function.readable} [{self.block.name}]"


class LocationSet(dict[SiteBlock, int]):
    """Locations: a bit mask for each block that has any."""

    @classmethod
    def of(cls, locations: Iterable[Location]) -> LocationSet:
        """These locations."""
        bits: dict[SiteBlock, bytearray] = {}
        for block, position in locations:
            if block not in bits:
                bits[block] = bytearray((len(block) + 7) // 8)
            bits[block][position >> 3] |= 1 << (position & 7)
        return cls({block: int.from_bytes(mask, "little") for block, mask in bits.items()})

    def count(self) -> int:
        """The number of locations."""
        return sum(mask.bit_count() for mask in self.values())

    def __or__(self, other: LocationSet) -> LocationSet:  # type: ignore[override]
        return LocationSet({**self, **{block: self.get(block, 0) | mask for block, mask in other.items()}})

    def __ior__(self, other: LocationSet) -> LocationSet:  # type: ignore[override]
        return self | other  # not dict's, which would replace masks

    def __and__(self, other: LocationSet) -> LocationSet:
        return clean({block: mask & other.get(block, 0) for block, mask in self.items()})

    def __sub__(self, other: LocationSet) -> LocationSet:
        return clean({block: mask & ~other.get(block, 0) for block, mask in self.items()})

    def has(self, location: Location) -> bool:
        """Whether it is one of them."""
        return bool(self.get(location.block, 0) >> location.position & 1)

    def each(self) -> Iterator[Location]:
        """Each location, in table order."""
        for block, mask in self.items():
            for index in bits_of(mask):
                yield Location(block, index)


def clean(masks: dict[SiteBlock, int]) -> LocationSet:
    """A set without empty blocks."""
    return LocationSet({block: mask for block, mask in masks.items() if mask})


class LocationTable:
    """All locations. Blocks are in the order in which their modules were loaded."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.lists = ListCache(runtime)
        self.lines = CounterLines(runtime.image, runtime.counters)
        self.blocks: list[SiteBlock] = []
        """Blocks of modules, which were compiled with stubs."""
        self.of_images: list[SiteBlock] = []
        """Blocks of other images, whose locations are made when a probe needs them (ftrace.core.sites.image_block)."""
        self.lock = threading.RLock()
        """ftrace_lock: held while operations are registered or the table changes."""

    def add(self, module: Module, known: SiteBlock | None = None) -> SiteBlock | None:
        """Append a module's sites; `known`: its block if it was in the table before. None if it has no stubs."""
        if not len(module.sites):
            return None
        block = known or SiteBlock.of_module(module, self.lists, partial(original_text, self))
        self.blocks.append(block)
        return block

    def block_of(self, module: Module) -> SiteBlock | None:
        """The block of a module, if it has one."""
        return next((block for block in self.blocks if block.module is module), None)

    def everything(self) -> LocationSet:
        """All locations."""
        return LocationSet({block: block.everything for block in self.blocks})

    def __len__(self) -> int:
        return sum(map(len, self.blocks))

    def select(self, pattern: Pattern) -> LocationSet:
        """The locations whose function matches a pattern. The caller handles a negated pattern."""
        if pattern.kind is PatternKind.INDEX:
            location = self.at(index_of(pattern))
            return LocationSet({location.block: 1 << location.position}) if location else LocationSet()
        return clean({block: block.select(pattern) for block in self.blocks})

    def named_so(self, pattern: str) -> LocationSet:
        """The existing locations of all kinds whose function matches."""
        return clean({block: block.select(parse(pattern)) & block.everything for block in self.patched_blocks()})

    def at(self, position: int) -> Location | None:
        """The location at a 0-based position of the table."""
        if position < 0:
            return None
        for block in self.blocks:
            if position < len(block):
                return Location(block, position)
            position -= len(block)
        return None

    def patched_blocks(self) -> list[SiteBlock]:
        """The blocks of modules and of images: of those in which a site may have been patched."""
        return [*self.blocks, *self.of_images]

    def location(self, address: int) -> Location | None:
        """ftrace_location: by an address within a stub, or the address of a function."""
        for block in self.patched_blocks():
            index = bisect_right(block.addresses, address) - 1
            if index >= 0 and address < block.addresses[index] + SITE_SIZE and block.is_made(index):
                return Location(block, index)
            following = index + 1
            if following < len(block) and block.functions[following].address == address and block.is_made(following):
                return Location(block, following)
        return None

    def location_range(self, start: int, end: int) -> Location | None:
        """ftrace_location_range: a location whose 5 bytes touch start..end, both inclusive."""
        for block in self.patched_blocks():
            index = bisect_right(block.addresses, end) - 1
            if index >= 0 and block.addresses[index] + SITE_SIZE > start and block.is_made(index):
                return Location(block, index)
        return None

    def named(self, name: str) -> Location | None:
        """The first location of a function called exactly `name`, or of one whose demangled name that is."""
        for block in self.blocks:
            position = block.positions.get(name)
            if position is not None:
                return Location(block, position)
        found = ((block, places[0]) for block in self.blocks if (places := named(name, block.names)))
        return next((Location(block, place) for block, place in found), None)


def original_text(table: LocationTable, address: int, size: int) -> bytes:
    """The `size` bytes at `address` as they would be without ftrace and other kinds of probes."""
    code = bytearray(ctypes.string_at(address, size))
    for block in table.patched_blocks():
        first = bisect_left(block.addresses, address - SITE_SIZE + 1)
        for index in range(first, bisect_left(block.addresses, address + size, first)):
            if block.is_made(index) and block.is_live(index):
                overlay(code, block.addresses[index] - address, block.text_of(index))
    hooks.overlays(address, code)
    return bytes(code)


def overlay(code: bytearray, offset: int, data: bytes) -> None:
    """Copy `data` to an offset of `code`, as far as it fits."""
    at = max(offset, 0)
    within = data[at - offset : max(len(code) - offset, 0)]
    code[at : at + len(within)] = within


class Skipped(NamedTuple):
    """A requested function that cannot be traced; `reason` is a sentence."""

    name: str
    reason: str


class Resolution(NamedTuple):
    """The locations of the functions that a pattern matches, and the functions without one."""

    locations: LocationSet
    skipped: list[Skipped]


# -- the hashes of an ftrace_ops, which several ops may share ----------------------------------------------------------

FILTER, NOTRACE = "filter_hash", "notrace_hash"
"""The names of the two hashes of an OpsHash."""


class ModuleRequest(NamedTuple):
    """`func:mod:module`, kept until a module of that name is loaded."""

    func: str
    module: str

    def __str__(self) -> str:
        return f"{self.func}:mod:{self.module}"


class OpsHash:
    """struct ftrace_ops_hash. An empty filter selects all functions; an empty notrace excludes none."""

    def __init__(self) -> None:
        self.filter_hash = LocationSet()
        self.notrace_hash = LocationSet()
        self.requests: dict[str, list[ModuleRequest]] = {FILTER: [], NOTRACE: []}
        """Cached requests for each of the two hashes, newest first."""
        self.filter_awaits_modules = False
        """Whether there were requests when the filter was last committed. Then an empty filter does not select everything."""

    @property
    def for_everything(self) -> bool:
        """Whether the filter is empty, which means all functions, as ftrace_hash_empty()."""
        return not self.filter_hash and not self.filter_awaits_modules

    def select(self, table: LocationTable) -> dict[SiteBlock, int]:
        """The selected locations that are in the table: for each block of sites a mask, which may be 0.

        Functions of an unloaded module stay in the hashes: they match nothing any more, but a filter for them alone does not
        count as empty.
        """
        wanted = table.everything() if self.for_everything else self.filter_hash
        there = table.patched_blocks()
        without = self.notrace_hash
        return {block: mask & ~without.get(block, 0) for block, mask in wanted.items() if block in there}

    @property
    def state(self) -> tuple[LocationSet, LocationSet, bool]:
        """Both hashes, and `filter_awaits_modules`, for restoring them."""
        return self.filter_hash, self.notrace_hash, self.filter_awaits_modules

    @state.setter
    def state(self, saved: tuple[LocationSet, LocationSet, bool]) -> None:
        self.filter_hash, self.notrace_hash, self.filter_awaits_modules = saved

    def replace(self, which: str, changed: LocationSet, awaits_modules: bool | None = None) -> None:
        """Replace the contents of one hash. `awaits_modules`: None leaves that unchanged."""
        setattr(self, which, changed)
        if awaits_modules is not None:
            self.filter_awaits_modules = awaits_modules

    def clear(self) -> None:
        """Empty both hashes (ftrace_free_filter())."""
        self.state = LocationSet(), LocationSet(), False


global_hash = OpsHash()
"""The hashes of set_ftrace_filter and set_ftrace_notrace."""
