"""Written detours: where the parts of each are, rewriting two of them while threads run it, unwinding from it."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ftrace.core.unwind.unwinding import FrameDescription
from kprobes.breakpoint import patching
from kprobes.hit.records import PlaceRecord
from kprobes.x86_64.optimized_detour import DETOUR_SIZE, ENTRY, RECORD
from kprobes.x86_64.unwinding import detour_section

if TYPE_CHECKING:
    from sandbox.memory.mappings import TextMapping


class Detour(NamedTuple):
    """A detour: its page, its address, the address of its copied instructions, and their offsets from the first."""

    page: TextMapping
    address: int
    copies: Sequence[int]
    offsets: Sequence[int]

    @property
    def entry(self) -> int:
        """The address that the jump goes to."""
        return self.address + ENTRY

    def write_head(self, head: bytes) -> None:
        """Replace the first instruction. Within `patching()`."""
        patching.write(self.page, self.entry, head)

    def set_routine(self, routine: int) -> None:
        """Let it call the routine at this address: one store of an aligned word. Within `patching()`."""
        if ctypes.c_uint64.from_address(self.address).value != routine:
            patching.write(self.page, self.address, routine.to_bytes(8, "little"))


class DetourFrames:
    """Unwind information for an allocation of detours: the description, and the tables it reads."""

    def __init__(self, page: TextMapping) -> None:
        self._base = page.base
        self._steps = (ctypes.c_uint8 * page.size)()
        self._units = (ctypes.c_uint8 * (page.size // DETOUR_SIZE))()
        tables = (ctypes.addressof(self._steps), ctypes.addressof(self._units))
        section = detour_section(page.base, page.size, *tables, RECORD, PlaceRecord.offset("address"))
        self._description = FrameDescription("kprobe_optinsn_page", page.base, page.size, section)

    def note(self, address: int, size: int, steps: Mapping[int, int]) -> None:
        """Add a detour: its address, its size in bytes, and its steps by offset."""
        first = address - self._base
        for number in range(size // DETOUR_SIZE):
            self._units[first // DETOUR_SIZE + number] = number
        for offset, step in steps.items():
            self._steps[first + offset] = step

    def withdraw(self) -> None:
        """Unregister it: the code is about to be freed."""
        self._description.withdraw()
