"""The jump of one place: its detour, where it is aimed at, and its bytes.

Detours and landings stay for as long as the text they belong to, since a thread may be on its way through them at any time; a
place that is optimised again uses its own again.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING

from ftrace.x86_64.stubs import SITE_SIZE
from kprobes import patching
from kprobes.aggregate import original_text
from kprobes.landings import LandingRoom
from kprobes.puns import borrowed, jump_bytes, windows
from kprobes.runtime import kprobe_runtime
from kprobes.safety import Function, Refusal, examine, own_refusal
from kprobes.x86_64.optimized_detour import COPY, DETOUR_SIZE, ENTRY, detour_bytes
from kprobes.x86_64.relocate import JMP32_SIZE
from sandbox import memory
from sandbox.perfmap import perf_map

if TYPE_CHECKING:
    from kprobes.aggregate import Aggregate
    from sandbox.memory import TextMapping

_FIRST, _MOST = memory.PAGE, 1 << 20
"""Sizes of the pieces that detours are allocated in: each is twice the one before."""

Read = Callable[[int, int], bytes]


def live_text(address: int, size: int) -> bytes:
    """What is there at this moment."""
    return ctypes.string_at(address, size)


class Jump:
    """`detour`: its address. `code`: what to write over the place, once it is aimed: see `aim`."""

    def __init__(self, place: Aggregate, detour: int, room: JumpRoom) -> None:
        self.place = place
        self.detour = detour
        self.code = b""
        self._room = room
        self._borrowed = b""
        self._landings: list[int] = []

    @property
    def address(self) -> int:
        """Of the probed instruction."""
        return self.place.address

    @property
    def copy(self) -> int:
        """Where the copied instruction is, behind the handlers."""
        return self.detour + COPY

    @property
    def end(self) -> int:
        """The address behind the jump, the borrowed bytes included."""
        return self.address + max(JMP32_SIZE, len(self.code))

    def withdraw(self) -> None:
        """The code is going away: the detour leads to no record any more."""
        kprobe_runtime().table.set(self.detour, 0)

    def is_aimed(self, read: Read = live_text) -> bool:
        """Whether `code` would still lead to the detour, by the bytes behind the instruction as they are."""
        return bool(self.code) and self._following(read) == self._borrowed

    def aim(self, read: Read = live_text) -> Refusal | None:
        """Find `code` for the bytes behind the instruction as `read` gives them; or the rule that is against it."""
        self.code = b""
        length = self.place.length
        if length >= JMP32_SIZE:
            self.code = jump_bytes(self.address, length, 0, self.detour + ENTRY)
            return None
        following = self._following(read)
        if len(following) < borrowed(length):
            return Refusal("no bytes behind", "the text ends behind the instruction")
        return self._pun(length, following)

    def _following(self, read: Read) -> bytes:
        behind = self.address + self.place.length
        return read(behind, min(borrowed(self.place.length), self.place.text.end - behind))

    def _pun(self, length: int, following: bytes) -> Refusal | None:
        choices = windows(self.address, length, following)
        for window in choices:
            for landing in self._landings:
                if window.low <= landing < window.high:
                    self._set(window.prefixes, landing, following)
                    return None
        found = self._room.landings.take(choices, self.detour + ENTRY)
        if found is None:
            return Refusal(
                "no place to land", f"every address that {following.hex(' ')} behind it leave to a jump is taken"
            )
        window, landing = found
        self._landings.append(landing)
        self._set(window.prefixes, landing, following)
        return None

    def _set(self, prefixes: int, landing: int, following: bytes) -> None:
        self.code = jump_bytes(self.address, self.place.length, prefixes, landing)
        self._borrowed = following


class JumpRoom:
    """The detours and landings of one text mapping, and what is known of its functions."""

    def __init__(self, text: TextMapping) -> None:
        self._text = text
        self._pages: list[TextMapping] = []
        self._next = self._end = 0
        self._size = _FIRST
        self._landings: LandingRoom | None = None
        self._functions: dict[tuple[int, int], Function] = {}

    @property
    def landings(self) -> LandingRoom:
        """Made when the first jump is punned."""
        if self._landings is None:
            self._landings = LandingRoom(self._text.name)
        return self._landings

    def refresh(self) -> None:
        """Others may have mapped something since the last time."""
        if self._landings is not None:
            self._landings.refresh()

    def mappings(self) -> int:
        """How many mappings there are for detours and landings, the writable aliases included."""
        landings = len(self._landings.text) + 1 if self._landings else 0
        return 2 * len(self._pages) + landings

    def prepare(self, place: Aggregate) -> Jump | Refusal:
        """A jump for a place, with its detour; or the rule that is against it. Raises OSError(ENOMEM) without room."""
        assert place.insn is not None
        function = self.function(place.symbol.address, place.symbol.end)
        refusal = own_refusal(function, place.insn) or _borrowed_site(place)
        if refusal is not None:
            return refusal
        page, detour = self._take()
        runtime = kprobe_runtime()
        name = "kprobe_optimized_all_flags" if function.sets_direction else "kprobe_optimized"
        try:
            code = detour_bytes(place.insn, detour, runtime.image.address(name), place.record_address)
        except OverflowError as error:
            return Refusal("out of reach", str(error))
        patching.write(page, detour, code)
        place.record.optimizer = detour
        runtime.table.set(detour, place.record_address)
        return Jump(place, detour, self)

    def function(self, start: int, end: int) -> Function:
        """The facts about the function [start, end)."""
        known = self._functions.get((start, end))
        if known is None:
            known = self._functions[start, end] = examine(original_text(start, end - start), start)
        return known

    def _take(self) -> tuple[TextMapping, int]:
        if self._next == self._end:
            self._grow()
        address, self._next = self._next, self._next + DETOUR_SIZE
        return self._pages[-1], address

    def _grow(self) -> None:
        page = memory.allocate_text((self._text.base, self._text.end), self._size, f"{self._text.name}-detours")
        self._pages.append(page)
        self._size = min(self._size * 2, _MOST)
        self._next, self._end = page.base, page.end
        perf_map.add(page.base, page.size, f"kprobe_optinsn_page [{self._text.name}]")

    def close(self) -> None:
        """Give everything back; nobody can be in the text any more."""
        for page in self._pages:
            page.unmap()
        if self._landings is not None:
            self._landings.close()


def _borrowed_site(place: Aggregate) -> Refusal | None:
    """Bytes that ftrace patches cannot be borrowed."""
    found = ftrace_site_in(place.address + place.length, place.address + JMP32_SIZE)
    return Refusal("ftrace location", f"the bytes behind the instruction are {found}") if found else None


def ftrace_site_in(low: int, high: int) -> str | None:
    """What of [low, high) ftrace patches, in words."""
    from ftrace.tracer import tracer

    for block in tracer().table.blocks:
        index = bisect_left(block.addresses, low - SITE_SIZE + 1)
        if low < high and index < len(block.addresses) and block.addresses[index] < high:
            return f"the ftrace location {block.addresses[index]:#x}"
    return None


_rooms: dict[TextMapping, JumpRoom] = {}


def jump_room(text: TextMapping) -> JumpRoom:
    """The room of a text mapping."""
    room = _rooms.get(text)
    if room is None:
        room = _rooms[text] = JumpRoom(text)
    return room


def rooms() -> list[JumpRoom]:
    """All of them."""
    return list(_rooms.values())


def close_room(text: TextMapping) -> None:
    """The mapping is going away."""
    room = _rooms.pop(text, None)
    if room is not None:
        room.close()


# -- the text -----------------------------------------------------------------------------------------------------


def write_jumps(jumps: list[Jump]) -> None:
    """Turn breakpoints into jumps; by descending address.

    First the tails, behind breakpoints that send whoever comes by to the copies; then the first bytes. A jump whose borrowed
    bytes are another's is begun when every core has seen that one.
    """
    for jump in jumps:
        if len(jump.code) > 1:
            patching.write(jump.place.text, jump.address + 1, jump.code[1:])
    patching.sync()
    last = 1 << 64
    for jump in jumps:
        if last - jump.address < JMP32_SIZE:
            patching.sync()
        jump.place.covered = jump.place.original[: len(jump.code)]
        patching.write(jump.place.text, jump.address, jump.code[:1])
        last = jump.address
    patching.sync()


def restore(places: list[Aggregate]) -> None:
    """Turn jumps into breakpoints; by ascending address, so that who borrows goes before the lender."""
    last = -JMP32_SIZE
    for place in places:
        if place.address - last < JMP32_SIZE:
            patching.sync()
        patching.write(place.text, place.address, patching.INT3)
        last = place.address
    patching.sync()
    for place in places:
        if len(place.covered) > 1:
            patching.write(place.text, place.address + 1, place.covered[1:])
        place.covered = b""
    patching.sync()
