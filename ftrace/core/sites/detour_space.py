"""Memory for detours and landings near one mapping of text."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ftrace.core.unwind.unwinding import FrameDescription
from ftrace.hit.recursion import FAST
from ftrace.hit.x86_64.entry_detour import BODY, DETOUR_SIZE, detour_section, detour_template, entry_detour
from ftrace.hit.x86_64.entry_writing import COPY_SIZES, Detour
from sandbox.memory import mappings, pages
from sandbox.memory.landings import LandingSpace
from sandbox.symbols.perfmap import perf_map
from sandbox.threads.tasks import Task
from sandbox.x86_64.encoding import INT3

if TYPE_CHECKING:
    from ftrace.core.runtime import Runtime
    from sandbox.memory.mappings import TextMapping
    from sandbox.memory.scattered import ScatteredText
    from sandbox.native.x86_64.entry_bytes import Entries, EntryInstructions
    from sandbox.x86_64.puns import Window

_MOST = 1 << 20
"""The largest allocation for detours, in bytes. Each is twice the previous one, or as large as is needed at once."""


class DetourSpace:
    """The detours and landings near one text. Everything written within `open()` is executed by every core when that ends.

    Each allocation begins with the address that its detours use.
    """

    def __init__(self, text: TextMapping, runtime: Runtime) -> None:
        self._text = text
        self._image = runtime.image
        self._routine = runtime.image.address("ftrace_entry_preserving_all")
        self._template = detour_template(runtime.key.offset, FAST, Task.offset("rec"))
        self._whole = ctypes.create_string_buffer(self._template.ljust(DETOUR_SIZE, bytes([INT3])), DETOUR_SIZE)
        self._waiting: list[int] = []
        self._frames: list[FrameDescription] = []
        self._pieces: list[TextMapping] = []
        self._next = self._size = 0
        self._named, self._wanted = (0, 0), 0
        self._landings: LandingSpace | None = None
        self._stack = contextlib.ExitStack()
        self._deltas: dict[TextMapping, int] = {}
        self._scattered: set[ScatteredText] = set()

    def __contains__(self, address: int) -> bool:
        return any(address in piece for piece in self._pieces)

    @contextlib.contextmanager
    def open(self, entries: Entries) -> Iterator[None]:
        """Open the memory for writing, for functions with these entries.

        Looks again which addresses are free: other code may have mapped memory.
        """
        if self._landings is not None:
            self._landings.refresh()
        self._named, self._wanted = (entries.low, entries.high), len(entries)
        try:
            with self._stack:
                try:
                    yield
                finally:
                    self._write_waiting()
        finally:
            self._deltas.clear()
            self._scattered.clear()
        pages.sync_cores()

    def _write_waiting(self) -> None:
        waiting = (ctypes.c_uint64 * len(self._waiting))(*self._waiting)
        self._waiting.clear()
        count = ctypes.sizeof(waiting) // Detour.size
        self._image.call("write_detours", ctypes.addressof(waiting), count, ctypes.addressof(self._whole))

    def write(self, text: TextMapping, address: int, code: bytes) -> None:
        """Store code that no thread executes yet."""
        ctypes.memmove(address + self.delta(text), code, len(code))

    def delta(self, text: TextMapping) -> int:
        """How far above its text the alias is through which it is written."""
        delta = self._deltas.get(text)
        if delta is None:
            delta = self._deltas[text] = self._stack.enter_context(text.writable())
        return delta

    def write_word(self, text: TextMapping, address: int, word: bytes) -> None:
        """Store four aligned bytes that threads may be executing."""
        ctypes.c_uint32.from_address(address + self.delta(text)).value = int.from_bytes(word, "little")

    def detour(self, entry: EntryInstructions, count: int, stub: int, slot: int) -> tuple[int, list[int]]:
        """A detour of a function with copies of its first `count` instructions: its address, and those of the copies.

        It is written when the memory is closed. Raises as `entry_detour` does.
        """
        if not self._pieces or self._next == self._pieces[-1].end:
            self._grow()
        piece, where = self._pieces[-1], self._next
        if not (entry.is_read(count) and self._reaches(piece)):
            made = entry_detour(self._template, entry.instructions(count), where, stub, piece.base, slot)
            self.write(piece, where, made.code)
            copies = made.copies
        else:
            self._waiting += entry.where, where, where + self.delta(piece), count, stub, slot, piece.base
            copies = [where + BODY]
            for kind, length in zip(entry.kinds[: count - 1], entry.lengths, strict=False):
                copies.append(copies[-1] + COPY_SIZES.get(kind, length))
        self._next += DETOUR_SIZE
        self._wanted -= 1
        return where, copies

    def _reaches(self, piece: TextMapping) -> bool:
        """Whether all that the functions' first instructions name is in reach of a detour there."""
        low, high = self._named
        return piece.end - low < mappings.REACH and high - piece.base < mappings.REACH

    def _grow(self) -> None:
        wanted = (self._wanted + 1) * DETOUR_SIZE + mappings.PAGE - 1 & -mappings.PAGE
        self._size = min(max(self._size * 2, wanted, mappings.PAGE), _MOST)
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
