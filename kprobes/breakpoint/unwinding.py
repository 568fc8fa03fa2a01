"""Unwind information for slots and detours: it leads unwinders and debuggers back to the probed code."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ftrace.unwind.unwinding import FrameDescription
from kprobes.hit.records import Record
from kprobes.x86_64 import optimized_detour
from kprobes.x86_64.copy_frames import detour_section, slot_section
from kprobes.x86_64.detour import DETOUR, RECORD

if TYPE_CHECKING:
    from sandbox.memory.mappings import TextMapping

_UNIT = optimized_detour.DETOUR_SIZE


def describe_slots(page: TextMapping) -> FrameDescription:
    """Register unwind information for an allocation of slots."""
    fields = (Record.offset("address"), Record.offset("length"))
    section = slot_section(page.base, page.size, DETOUR, RECORD, fields)
    return FrameDescription("kprobe_insn_page", page.base, page.size, section)


class DetourFrames:
    """Unwind information for an allocation of detours: the description, and the tables it reads."""

    def __init__(self, page: TextMapping) -> None:
        self._base = page.base
        self._steps = (ctypes.c_uint8 * page.size)()
        self._units = (ctypes.c_uint8 * (page.size // _UNIT))()
        tables = (ctypes.addressof(self._steps), ctypes.addressof(self._units))
        section = detour_section(page.base, page.size, *tables, optimized_detour.RECORD, Record.offset("address"))
        self._description = FrameDescription("kprobe_optinsn_page", page.base, page.size, section)

    def note(self, address: int, size: int, steps: Mapping[int, int]) -> None:
        """Add a detour: its address, its size in bytes, and its steps by offset."""
        first = address - self._base
        for number in range(size // _UNIT):
            self._units[first // _UNIT + number] = number
        for offset, step in steps.items():
            self._steps[first + offset] = step

    def withdraw(self) -> None:
        """Unregister it: the code is about to be freed."""
        self._description.withdraw()
