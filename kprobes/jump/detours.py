"""A written detour: where its parts are, and the two parts that are rewritten while threads execute it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from kprobes.breakpoint import patching
from kprobes.x86_64.optimized_detour import ENTRY

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
