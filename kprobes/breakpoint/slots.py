"""Instruction slots: pages near the text, for copies of probed instructions.

A slot belongs to one address until the text there is freed. It is never reused for another instruction, since a thread may
be executing in it at any time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftrace.core.unwind.unwinding import FrameDescription
from kprobes.breakpoint import patching
from kprobes.hit.records import PlaceRecord
from kprobes.x86_64.slot import DETOUR, RECORD, SLOT_SIZE
from kprobes.x86_64.unwinding import slot_section
from sandbox.memory import mappings
from sandbox.symbols.perfmap import perf_map
from sandbox.symbols.table import Symbol, symbol_table

if TYPE_CHECKING:
    from sandbox.memory.mappings import TextMapping

_FIRST, _MOST = mappings.PAGE, 1 << 18
"""Sizes of the first and the largest allocation, in bytes; each is twice the previous one."""

PSEUDO_SYMBOL, OWNER = "kprobe_insn_page", "__builtin__kprobes"
"""Symbol and module of addresses in slots."""


def _listed(page: TextMapping) -> str:
    return f"{OWNER}:{page.base:#x}"


class InsnSlotCache:
    """The slots of one text mapping: struct kprobe_insn_cache. `common`: the code that every slot's detour jumps to."""

    def __init__(self, text: TextMapping, common: int) -> None:
        self.text = text
        self.pages: list[TextMapping] = []
        self._frames: list[FrameDescription] = []
        self._common = common
        self._next = self._end = 0
        self._size = _FIRST

    def take(self) -> tuple[TextMapping, int, int]:
        """A free slot: its mapping, its address, and the address of the word that holds `common`.

        Raises OSError(ENOMEM) if no memory near the text is free.
        """
        if self._next == self._end:
            self._grow()
        address, self._next = self._next, self._next + SLOT_SIZE
        return self.pages[-1], address, self.pages[-1].base

    def _grow(self) -> None:
        page = mappings.allocate_text((self.text.base, self.text.end), self._size, f"{self.text.name}-slots")
        self.pages.append(page)
        self._frames.append(_describe(page))
        self._size = min(self._size * 2, _MOST)
        self._next, self._end = page.base + SLOT_SIZE, page.end
        patching.write(page, page.base, self._common.to_bytes(8, "little"))
        perf_map.add(page.base, page.size, f"kprobe_insn_page [{self.text.name}]")
        symbol_table.add(_listed(page), [Symbol(PSEUDO_SYMBOL, page.base, page.size, OWNER)], is_own=True)

    def close(self) -> None:
        """Free all slots. No thread can be in the text any more."""
        for frames, page in zip(self._frames, self.pages, strict=True):
            frames.withdraw()
            symbol_table.remove(_listed(page))
            page.unmap()
        self.pages.clear()
        self._frames.clear()


def _describe(page: TextMapping) -> FrameDescription:
    """Register unwind information for an allocation of slots."""
    fields = (PlaceRecord.offset("address"), PlaceRecord.offset("length"))
    section = slot_section(page.base, page.size, DETOUR, RECORD, fields)
    return FrameDescription("kprobe_insn_page", page.base, page.size, section)
