"""Memory for detours and landings: pages near the text that they belong to.

They live as long as that text, since a thread may be executing them at any time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kprobes.breakpoint import patching
from kprobes.breakpoint.detours import Detour, DetourFrames
from kprobes.hit.records import ChildList, PlaceRecord
from kprobes.hit.runtime import kprobe_runtime
from kprobes.place import places
from kprobes.x86_64.optimized_detour import detour_code
from sandbox.memory import mappings as memory
from sandbox.memory.landings import LandingSpace
from sandbox.symbols.perfmap import perf_map

if TYPE_CHECKING:
    from kprobes.jump.safety import Function
    from kprobes.place import Place
    from sandbox.memory.mappings import TextMapping
    from sandbox.x86_64.instruction import Instruction

_FIRST, _MOST = memory.PAGE, 1 << 20
"""Sizes of the first and the largest allocation for detours, in bytes; each is twice the previous one."""


class OptinsnCache:
    """The detours and landings of one text mapping: kprobe_optinsn_slots."""

    def __init__(self, text: TextMapping) -> None:
        self._text = text
        self._pages: list[TextMapping] = []
        self._frames: list[DetourFrames] = []
        self._next = self._end = 0
        self._size = _FIRST
        self._landings: LandingSpace | None = None
        self._inner: dict[int, tuple[Any, int]] = {}

    @property
    def landings(self) -> LandingSpace:
        """The landings; created for the first punned jump."""
        if self._landings is None:
            self._landings = LandingSpace(self._text.name, patching.keep_open)
        return self._landings

    def refresh(self) -> None:
        """Look again which addresses are free: other code may have mapped memory."""
        if self._landings is not None:
            self._landings.refresh()

    def mappings(self) -> int:
        """The number of mappings for detours and landings, including the writable aliases."""
        landings = len(self._landings) + 1 if self._landings is not None else 0
        return 2 * len(self._pages) + landings

    # -- detours ------------------------------------------------------------------------------------------------

    def detour(self, place: Place, insns: Sequence[Instruction], function: Function, hooked: int) -> Detour:
        """A new detour for a place, with copies of these instructions. Raises OverflowError if an operand is out of range.

        `hooked`: where calls continue whose return has been hooked; 0 if returns are not hooked here.
        """
        routine = self.routine(place, function, hooked)
        if self._next == self._end:
            self._grow()
        given = (routine, place.record_address, hooked, not place.scratch_is_free)
        code, copies, steps = detour_code(insns, self._next, *given)
        if self._end - self._next < len(code):
            self._grow()
            code, copies, steps = detour_code(insns, self._next, *given)
        page, address = self._pages[-1], self._next
        self._frames[-1].note(address, len(code), steps)
        self._next += len(code)
        patching.write(page, address, code)
        kprobe_runtime().table.set(copies[0], place.record_address)
        for insn, copy in zip(insns[1:], copies[1:], strict=True):
            self._lead_inside(insn, copy)
        return Detour(page, address, copies, [insn.address - place.address for insn in insns])

    def routine(self, place: Place, function: Function, hooked: int) -> int:
        """The address of the routine that a place's detours call, given its present children. `hooked`: as for `detour`."""
        name = "kprobe_optimized_plain" if place.children.is_plain else "kprobe_optimized"
        if hooked:
            return kprobe_runtime().image.address(f"{name}_return" + "_preserving" * (not place.scratch_is_free))
        return kprobe_runtime().image.address("kprobe_optimized_all_flags" if function.sets_direction else name)

    def _lead_inside(self, insn: Instruction, copy: int) -> None:
        """Let a breakpoint at an absorbed instruction lead to its copy; faults of the copy are reported at the original."""
        table = kprobe_runtime().table
        memory_of = ctypes.create_string_buffer(PlaceRecord.size)
        record = PlaceRecord.ctypes.from_buffer(memory_of)
        record.address, record.length, record.optimized = insn.address, insn.length, copy
        record.children = ctypes.addressof(_no_children)
        self._inner[copy] = (memory_of, insn.address)
        table.set(copy, ctypes.addressof(memory_of))
        if insn.address not in places:
            table.set(insn.address, ctypes.addressof(memory_of))

    def _grow(self) -> None:
        page = memory.allocate_text((self._text.base, self._text.end), self._size, f"{self._text.name}-detours")
        self._pages.append(page)
        self._frames.append(DetourFrames(page))
        self._size = min(self._size * 2, _MOST)
        self._next, self._end = page.base, page.end
        perf_map.add(page.base, page.size, f"kprobe_optinsn_page [{self._text.name}]")

    def close(self) -> None:
        """Free everything. No thread can be in the text any more."""
        table = kprobe_runtime().table
        for copy, (_memory, address) in self._inner.items():
            table.set(copy, 0)
            if address not in places:
                table.set(address, 0)
        for frames, page in zip(self._frames, self._pages, strict=True):
            frames.withdraw()
            page.unmap()
        if self._landings is not None:
            self._landings.close()


_no_children = ctypes.create_string_buffer(ChildList.offset("children") + 8)
_caches: dict[TextMapping, OptinsnCache] = {}


def cache_of(text: TextMapping) -> OptinsnCache:
    """The cache of a text mapping."""
    cache = _caches.get(text)
    if cache is None:
        cache = _caches[text] = OptinsnCache(text)
    return cache


def caches() -> list[OptinsnCache]:
    """The caches of all text mappings."""
    return list(_caches.values())


def close_cache(text: TextMapping) -> None:
    """The mapping is about to be freed."""
    cache = _caches.pop(text, None)
    if cache is not None:
        cache.close()
