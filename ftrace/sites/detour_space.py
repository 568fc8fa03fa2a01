"""Memory for detours and landings near one mapping of text."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ftrace.hit.recursion import FAST
from ftrace.unwind.unwinding import FrameDescription
from ftrace.x86_64.entry_detour import DETOUR_SIZE, EntryDetour, detour_section, detour_template, entry_detour
from sandbox.memory import barriers, mappings
from sandbox.memory.landings import LandingSpace
from sandbox.symbols.perfmap import perf_map
from sandbox.threads.tasks import Task

if TYPE_CHECKING:
    from ftrace.runtime import Runtime
    from sandbox.memory.mappings import TextMapping
    from sandbox.memory.scattered import ScatteredText
    from sandbox.x86_64.instruction import Instruction
    from sandbox.x86_64.puns import Window

_FIRST, _MOST = mappings.PAGE, 1 << 20
"""Sizes of the first and the largest allocation for detours, in bytes; each is twice the previous one."""


class DetourSpace:
    """The detours and landings near one text. Everything written within `open()` is executed by every core when that ends.

    Each allocation begins with the address that its detours use.
    """

    def __init__(self, text: TextMapping, runtime: Runtime) -> None:
        self._text = text
        self._routine = runtime.image.address("ftrace_entry_keeping_all")
        self._template = detour_template(runtime.key.offset, FAST, Task.offset("rec"))
        self._frames: list[FrameDescription] = []
        self._pieces: list[TextMapping] = []
        self._next = self._size = 0
        self._landings: LandingSpace | None = None
        self._stack = contextlib.ExitStack()
        self._deltas: dict[TextMapping, int] = {}
        self._scattered: set[ScatteredText] = set()

    def __contains__(self, address: int) -> bool:
        return any(address in piece for piece in self._pieces)

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Open the memory for writing. Looks again which addresses are free: other code may have mapped memory."""
        if self._landings is not None:
            self._landings.refresh()
        try:
            with self._stack:
                yield
        finally:
            self._deltas.clear()
            self._scattered.clear()
        barriers.sync_cores()

    def write(self, text: TextMapping, address: int, code: bytes) -> None:
        """Store code that no thread executes yet."""
        delta = self._deltas.get(text)
        if delta is None:
            delta = self._deltas[text] = self._stack.enter_context(text.writable())
        ctypes.memmove(address + delta, code, len(code))

    def write_word(self, text: TextMapping, address: int, word: bytes) -> None:
        """Store four aligned bytes that threads may be executing."""
        self.write(text, address, b"")
        ctypes.c_uint32.from_address(address + self._deltas[text]).value = int.from_bytes(word, "little")

    def detour(self, insns: Sequence[Instruction], stub: int, slot: int) -> tuple[int, EntryDetour]:
        """Write a detour for these instructions. Returns its address and its parts. Raises as `entry_detour` does."""
        if not self._pieces or self._next == self._pieces[-1].end:
            self._grow()
        piece, where = self._pieces[-1], self._next
        made = entry_detour(self._template, insns, where, stub, piece.base, slot)
        self._next += DETOUR_SIZE
        self.write(piece, where, made.code)
        return where, made

    def _grow(self) -> None:
        self._size = min(self._size * 2, _MOST) or _FIRST
        near = (self._text.base, self._text.end)
        piece = mappings.allocate_text(near, self._size, f"{self._text.name}-entries")
        self._pieces.append(piece)
        self._next = piece.base + DETOUR_SIZE
        self.write(piece, piece.base, self._routine.to_bytes(8, "little"))
        section = detour_section(self._next, piece.end - self._next)
        self._frames.append(FrameDescription(f"{self._text.name}.entries", self._next, piece.end - self._next, section))
        perf_map.add(piece.base, piece.size, f"entries [{self._text.name}]")

    def land(self, windows: Sequence[Window], target: int) -> tuple[Window, int] | None:
        """Write a landing in one of the windows, leading to `target`. Returns window and address; None if no memory is free."""
        if self._landings is None:
            self._landings = LandingSpace(self._text.name, self._keep_open)
        return self._landings.take(windows, target)

    def _keep_open(self, text: ScatteredText) -> None:
        if text not in self._scattered:
            self._scattered.add(text)
            self._stack.enter_context(text.writable())

    def close(self) -> None:
        """Free everything. No thread can be in the text any more."""
        for piece, frames in zip(self._pieces, self._frames, strict=True):
            frames.withdraw()
            piece.unmap()
        if self._landings is not None:
            self._landings.close()
