"""Where copied instructions lie: pages within reach of the text that they come from.

A slot belongs to one address for as long as the text there stays. A thread may be in it at any time, so it is never given
to another instruction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kprobes.breakpoint import patching
from kprobes.breakpoint.unwinding import describe_slots
from kprobes.x86_64.detour import SLOT_SIZE
from sandbox.memory import mappings
from sandbox.symbols.perfmap import perf_map
from sandbox.symbols.table import Symbol, symbol_table

if TYPE_CHECKING:
    from ftrace.unwind.unwinding import FrameDescription
    from sandbox.memory.mappings import TextMapping

_FIRST, _MOST = mappings.PAGE, 1 << 18
"""Sizes of the pieces that are allocated: each is twice the one before."""

PSEUDO_SYMBOL, OWNER = "kprobe_insn_page", "__builtin__kprobes"
"""What addresses in slots are called."""


def _listed(page: TextMapping) -> str:
    return f"{OWNER}:{page.base:#x}"


class InsnSlotCache:
    """The slots of one text mapping: struct kprobe_insn_cache. `common` is the address that every detour goes on to."""

    def __init__(self, text: TextMapping, common: int) -> None:
        self.text = text
        self.pages: list[TextMapping] = []
        self._frames: list[FrameDescription] = []
        self._common = common
        self._next = self._end = 0
        self._size = _FIRST

    def take(self) -> tuple[TextMapping, int, int]:
        """A free slot: the mapping it lies in, its address, and the address of the word that holds `common`.

        Raises OSError(ENOMEM) if there is no room within reach.
        """
        if self._next == self._end:
            self._grow()
        address, self._next = self._next, self._next + SLOT_SIZE
        return self.pages[-1], address, self.pages[-1].base

    def _grow(self) -> None:
        page = mappings.allocate_text((self.text.base, self.text.end), self._size, f"{self.text.name}-slots")
        self.pages.append(page)
        self._frames.append(describe_slots(page))
        self._size = min(self._size * 2, _MOST)
        self._next, self._end = page.base + SLOT_SIZE, page.end
        patching.write(page, page.base, self._common.to_bytes(8, "little"))
        perf_map.add(page.base, page.size, f"kprobe_insn_page [{self.text.name}]")
        symbol_table.add(_listed(page), [Symbol(PSEUDO_SYMBOL, page.base, page.size, OWNER)])

    def close(self) -> None:
        """Give everything back; nobody can be in the text any more."""
        for frames, page in zip(self._frames, self.pages, strict=True):
            frames.withdraw()
            symbol_table.remove(_listed(page))
            page.unmap()
        self.pages.clear()
        self._frames.clear()
