"""The jump of one place: its detour, where it is aimed at, and its bytes.

Detours and landings stay for as long as the text they belong to, since a thread may be on its way through them at any time; a
place that is optimised again uses its own again.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ftrace.tracer import tracer
from ftrace.x86_64.stubs import SITE_SIZE
from kprobes.breakpoint import patching
from kprobes.breakpoint.unwinding import DetourFrames
from kprobes.fast import fast_returns
from kprobes.fast.return_stubs import call_through, hooked_point
from kprobes.hit.records import ChildList, Record
from kprobes.hit.runtime import kprobe_runtime
from kprobes.jump.detours import Detour
from kprobes.jump.landings import MOST_PAGES, LandingRoom
from kprobes.jump.safety import Function, Refusal, absorbable, own_refusal
from kprobes.place.aggregate import State, aggregates
from kprobes.place.functions import function_at
from kprobes.x86_64.optimized_detour import detour_code
from sandbox.memory import mappings as memory
from sandbox.symbols.perfmap import perf_map
from sandbox.x86_64.puns import Window, borrowed, jump_bytes, wider_windows, windows
from sandbox.x86_64.relocate import JMP32_SIZE

if TYPE_CHECKING:
    from kprobes.place.aggregate import Aggregate
    from sandbox.memory.mappings import TextMapping
    from sandbox.x86_64.instruction import Instruction

MOST_BORROWED = 4
LONGEST = 8
"""Bytes of a jump with as many redundant prefixes as there is room for, its borrowed bytes included."""
_FIRST, _MOST = memory.PAGE, 1 << 20
"""Sizes of the pages that detours are allocated in: each is twice the one before."""

_NO_PLACE = Refusal("no place to land", "every address that the bytes behind it leave to a jump is taken")
_NO_MAPPINGS = Refusal("mappings", f"{MOST_PAGES} pages to land on are as many as there may be")

Read = Callable[[int, int], bytes]


def live_text(address: int, size: int) -> bytes:
    """What is there at this moment."""
    return ctypes.string_at(address, size)


class Jump:
    """`code`: what to write over the place, once it is aimed: see `aim`. `inner`: which of its bytes are to be int3.

    `former`: the jump that it replaces, whose detours threads may still be on their way through.
    """

    def __init__(self, place: Aggregate, function: Function, room: JumpRoom, former: Jump | None = None) -> None:
        assert place.insn is not None
        self.place = place
        self.code = b""
        self.inner: tuple[int, ...] = ()
        self._insn = place.insn
        self._function = function
        self._room = room
        self._borrowed = b""
        self._landings: list[tuple[int, int]] = []
        self._hooked = hooked_point(place)
        """Where its detours let calls go on whose return has been hooked."""
        self._detours: dict[int, Detour] = {0: room.detour(place, [place.insn], function, self._hooked)}
        self._absorbed = 0
        self._former = former

    @property
    def address(self) -> int:
        """Of the probed instruction."""
        return self.place.address

    @property
    def is_outdated(self) -> bool:
        """Whether it was made before the place had a return stub: its detours do not lead there."""
        return self._hooked != hooked_point(self.place)

    @property
    def copy(self) -> int:
        """Where the copied instruction is, behind the handlers."""
        return self._detours[self._absorbed].copies[0]

    @property
    def covered(self) -> bytes:
        """The original bytes under the jump."""
        offset = self.address - self._function.start
        return self._function.code[offset : offset + len(self.code)]

    def withdraw(self) -> None:
        """The code is going away: nothing here leads to a record any more."""
        for detour in self.detours:
            for copy in detour.copies:
                kprobe_runtime().table.set(copy, 0)

    def choose_routine(self) -> None:
        """Let the detours call what serves the place's children best; whatever they call would serve."""
        if self._hooked:
            call_through(self.place, self.copy)
        routine = self._room.routine(self.place, self._function, self._hooked)
        for detour in self._detours.values():
            detour.set_routine(routine)
        fast_returns.update(self.place)

    @property
    def detours(self) -> list[Detour]:
        """Its own, and those of the jump that it replaces."""
        return [*(self._former.detours if self._former else ()), *self._detours.values()]

    # -- where it goes ------------------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """The address behind the jump, its borrowed bytes included; before it is aimed, of one without prefixes."""
        return max(self.address + len(self.code) + len(self._borrowed), self.address + JMP32_SIZE)

    def is_aimed(self, read: Read = live_text) -> bool:
        """Whether `code` would still lead to the detour, by the bytes behind it as they are and what it absorbs."""
        if not self.code or any(_in_use(self.address + offset) for offset in self.inner):
            return False
        return read(self.address + len(self.code), len(self._borrowed)) == self._borrowed

    def aim(self, read: Read = live_text) -> Refusal | None:
        """Find `code` for the bytes behind the instruction as `read` gives them; or the rule that is against it."""
        self.code, self._borrowed, self.inner = b"", b"", ()
        length = self._insn.length
        if length >= JMP32_SIZE:
            self._set(Window(0, 0, 0), self._detours[0].entry, length, read)
            return None
        return self._pun(read) or None

    def _pun(self, read: Read) -> Refusal | None:
        refusal = self._borrowing(self._insn.end)
        if refusal is None:
            found = windows(self.address, self._insn.length, self._following(self._insn.end, read, MOST_BORROWED))
            most = max((window.prefixes for window in found), default=0)
            if most and not self._may_reach(most):
                found = [window for window in found if not window.prefixes or self._may_reach(window.prefixes)]
            if self._land(found, self._insn.length, read):
                return None
            refusal = _NO_MAPPINGS if self._room.landings.full else _NO_PLACE
        return None if self._absorb(read) else refusal

    def _absorb(self, read: Read) -> bool:
        """Try again with the instructions behind it, as long as they may be absorbed."""
        insns = [self._insn]
        while insns[-1].end < self.address + JMP32_SIZE:
            behind = absorbable(self._function, self.address, insns[-1].end)
            if behind is None or _in_use(behind.address):
                return False
            insns.append(behind)
            own = behind.end - self.address
            if self._borrowing(behind.end) is None:
                choices = wider_windows(self.address, [i.length for i in insns], self._following(behind.end, read, 0))
                if self._make_detour(insns) and self._land(list(choices), own, read):
                    return True
        return False

    def _make_detour(self, insns: Sequence[Instruction]) -> bool:
        if len(insns) - 1 not in self._detours:
            try:
                self._detours[len(insns) - 1] = self._room.detour(self.place, insns, self._function, self._hooked)
            except OverflowError:
                return False
        return True

    def _borrowing(self, end: int) -> Refusal | None:
        """What is against borrowing the bytes of a jump that lie at `end` and behind."""
        found = ftrace_site_in(end, self.address + JMP32_SIZE)
        return Refusal("ftrace location", f"the bytes behind the instruction are {found}") if found else None

    def _may_reach(self, prefixes: int) -> bool:
        """Whether a jump with prefixes may borrow what others would not: nothing that is probed or patched."""
        low, high = self.address + JMP32_SIZE, self.address + prefixes + JMP32_SIZE
        return ftrace_site_in(low, high) is None and not any(_in_use(address) for address in range(low, high))

    def _following(self, end: int, read: Read, least: int) -> bytes:
        wanted = max(borrowed(end - self.address), least)
        return read(end, min(wanted, self.place.text.end - end))

    def _land(self, choices: Sequence[Window], own: int, read: Read) -> bool:
        absorbed = choices[0].absorbed if choices else 0
        target = self._detours[absorbed].entry
        for window in choices:
            for landing, to in self._landings:
                if to == target and window.low <= landing < window.high:
                    self._set(window, landing, own, read)
                    return True
        found = self._room.landings.take(choices, target)
        if found is None:
            return False
        self._landings.append((found[1], target))
        self._set(*found, own, read)
        return True

    def _set(self, window: Window, target: int, own: int, read: Read) -> None:
        self.code = jump_bytes(self.address, own, window.prefixes, target)
        self._absorbed = window.absorbed
        behind = self.address + len(self.code)
        self._borrowed = read(behind, max(self.address + window.prefixes + JMP32_SIZE - behind, 0))
        self.inner = tuple(offset for offset in self._detours[window.absorbed].offsets[1:] if offset < JMP32_SIZE)


def _in_use(address: int) -> bool:
    place = aggregates.get(address)
    return place is not None and place.state is not State.OFF


def ftrace_site_in(low: int, high: int) -> str | None:
    """What of [low, high) ftrace patches, in words."""
    for block in tracer().table.blocks if low < high else ():
        index = bisect_left(block.addresses, low - SITE_SIZE + 1)
        if index < len(block.addresses) and block.addresses[index] < high:
            return f"the ftrace location {block.addresses[index]:#x}"
    return None


class JumpRoom:
    """The detours and landings of one text mapping, and what leads into them."""

    def __init__(self, text: TextMapping) -> None:
        self._text = text
        self._pages: list[TextMapping] = []
        self._frames: list[DetourFrames] = []
        self._next = self._end = 0
        self._size = _FIRST
        self._landings: LandingRoom | None = None
        self._inner: dict[int, tuple[Any, int]] = {}

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

    def prepare(self, place: Aggregate, former: Jump | None) -> Jump | Refusal:
        """A jump for a place, with its detour; or the rule that is against it. Raises OSError(ENOMEM) without room.

        `former`: the one that it is to replace, if there is one.
        """
        assert place.insn is not None
        function = function_at(place.symbol.address, place.symbol.end)
        refusal = own_refusal(function, place.insn)
        if refusal is not None:
            return refusal
        try:
            return Jump(place, function, self, former)
        except OverflowError as error:
            return Refusal("out of reach", str(error))

    # -- detours ------------------------------------------------------------------------------------------------

    def detour(self, place: Aggregate, insns: Sequence[Instruction], function: Function, hooked: int) -> Detour:
        """A new detour for a place, with copies of these instructions. Raises OverflowError if one is out of reach.

        `hooked`: where calls go on whose return has been hooked; 0 for a detour that nobody takes whose return may be.
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

    def routine(self, place: Aggregate, function: Function, hooked: int) -> int:
        """The address of what detours of a place call, by its children as they are; `hooked` as for `detour`."""
        name = "kprobe_optimized_plain" if place.is_plain else "kprobe_optimized"
        if hooked:
            return kprobe_runtime().image.address(f"{name}_return" + "_keeping" * (not place.scratch_is_free))
        return kprobe_runtime().image.address("kprobe_optimized_all_flags" if function.sets_direction else name)

    def _lead_inside(self, insn: Instruction, copy: int) -> None:
        """A breakpoint at an absorbed instruction leads to its copy, which faults in its name."""
        table = kprobe_runtime().table
        memory_of = ctypes.create_string_buffer(Record.size)
        record = Record.ctypes.from_buffer(memory_of)
        record.address, record.length, record.optimized = insn.address, insn.length, copy
        record.children = ctypes.addressof(_no_children)
        self._inner[copy] = (memory_of, insn.address)
        table.set(copy, ctypes.addressof(memory_of))
        if insn.address not in aggregates:
            table.set(insn.address, ctypes.addressof(memory_of))

    def _grow(self) -> None:
        page = memory.allocate_text((self._text.base, self._text.end), self._size, f"{self._text.name}-detours")
        self._pages.append(page)
        self._frames.append(DetourFrames(page))
        self._size = min(self._size * 2, _MOST)
        self._next, self._end = page.base, page.end
        perf_map.add(page.base, page.size, f"kprobe_optinsn_page [{self._text.name}]")

    def close(self) -> None:
        """Give everything back; nobody can be in the text any more."""
        table = kprobe_runtime().table
        for copy, (_memory, address) in self._inner.items():
            table.set(copy, 0)
            if address not in aggregates:
                table.set(address, 0)
        for frames, page in zip(self._frames, self._pages, strict=True):
            frames.withdraw()
            page.unmap()
        if self._landings is not None:
            self._landings.close()


_no_children = ctypes.create_string_buffer(ChildList.offset("children") + 8)
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


def write_jumps(jumps: Sequence[Jump]) -> None:
    """Turn breakpoints into jumps; by descending address.

    First breakpoints at the instructions that are absorbed, then the rest of the tails, at last the first bytes: whoever
    comes by meanwhile is sent to the copies. A jump whose borrowed bytes are another's is begun when every core has seen
    that one.
    """
    _write((jump, offset, jump.code[offset : offset + 1]) for jump in jumps for offset in jump.inner)
    _write((jump, *stretch) for jump in jumps for stretch in _tails(jump, jump.code))
    last = 1 << 64
    for jump in jumps:
        if last - jump.address < JMP32_SIZE:
            patching.sync()
        patching.write(jump.place.text, jump.address, jump.code[:1])
        last = jump.address
    patching.sync()


def restore(jumps: Sequence[Jump]) -> None:
    """Turn jumps into breakpoints; by ascending address, so that who borrows goes before the lender."""
    last = -JMP32_SIZE
    for jump in jumps:
        if jump.address - last < JMP32_SIZE:
            patching.sync()
        patching.write(jump.place.text, jump.address, patching.INT3)
        last = jump.address
    patching.sync()
    _write((jump, *stretch) for jump in jumps for stretch in _tails(jump, jump.covered))
    _write((jump, offset, jump.covered[offset : offset + 1]) for jump in jumps for offset in jump.inner)


def _write(stretches: Iterable[tuple[Jump, int, bytes]]) -> None:
    """Store bytes at offsets of jumps, and let every core see them."""
    for jump, offset, data in stretches:
        patching.write(jump.place.text, jump.address + offset, data)
    patching.sync()


def _tails(jump: Jump, text: bytes) -> Iterator[tuple[int, bytes]]:
    """What `text`, the jump's bytes or those under it, has behind the first one, but for absorbed instructions' first."""
    start = 1
    for stop in (*jump.inner, len(text)):
        if start < stop:
            yield start, text[start:stop]
        start = stop + 1
