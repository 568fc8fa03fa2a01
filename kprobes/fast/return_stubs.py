"""Return stubs: calls whose return a kretprobe has hooked at a breakpoint or a jump return to them.

Each place has one, with a list that all share. A single kretprobe with native handlers at the entry of a module's function has
a faster one, at the cost of an fprobe: the first instruction of the detour becomes a jump into the stub. This stub's list holds
one probe, whose handlers (a few instructions of assembly: kprobes.x86_64.single_handlers) call the kretprobe's. The call's node
is the kretprobe instance. The probe's pool counts all instances in use, including those of calls that were hooked differently.
The stub overwrites r10 and r11, so it is not used where they may hold a value.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from ftrace.core.probe import NativeProbe
from ftrace.core.runtime import runtime
from ftrace.core.sites.lists import ListRecord
from ftrace.core.tracer import tracer
from ftrace.core.unwind.unwinding import FrameDescription, describe_stubs
from ftrace.hit.records import CALLBACK, COMPLETE, HAS_EXIT
from ftrace.hit.x86_64.frames import HOOKED_TO, Stubs
from ftrace.hit.x86_64.preserving_stub import DROP_RETURN_PRESERVING, SLOT_RESTORED, preserving_stub
from ftrace.hit.x86_64.stubs import ENTRY_POINT, RETURN_POINT, SLOT, STUB_SIZE, TO_BODY_BY_CALL
from kprobes.breakpoint import patching
from kprobes.fast.single import FastReturn
from kprobes.hit.records import RETURN_DATA
from kprobes.hit.runtime import kprobe_runtime
from kprobes.x86_64.return_stub import DROP_RETURN, return_stub
from sandbox.memory import mappings
from sandbox.process import hooks
from sandbox.process.once import once
from sandbox.x86_64.encoding import displacement, jump

if TYPE_CHECKING:
    from collections.abc import Collection

    from ftrace.core.sites.lists import ListRecord
    from kprobes.breakpoint.detours import Detour
    from kprobes.children import PlacedProbe
    from kprobes.place import Place
    from sandbox.memory.mappings import TextMapping


_PIECE = 16 * mappings.PAGE


_EXIT_PRESERVING = 16
"""Offset of the third word at the start of an allocation; only stubs that keep every register need it."""


class _StubSpace:
    """The stubs of one kind near one text. Each allocation begins with the addresses that every stub uses."""

    def __init__(self, text: TextMapping, preserving: bool) -> None:
        self.text = text
        self._preserving = preserving
        self.pieces: list[TextMapping] = []
        self._frames: list[FrameDescription] = []
        self._next = self._end = 0

    def take(self) -> tuple[TextMapping, int]:
        if self._next == self._end:
            self._grow()
        where, self._next = self._next, self._next + STUB_SIZE
        return self.pieces[-1], where

    def _grow(self) -> None:
        name = f"{self.text.name}-returns"
        piece = mappings.allocate_text((self.text.base, self.text.end), _PIECE, name)
        address = runtime().image.address
        words = tuple(map(address, ("ftrace_exit_full", "ftrace_entry_slow", "ftrace_exit_preserving_all")))
        patching.write(piece, piece.base, b"".join(word.to_bytes(8, "little") for word in words))
        self.pieces.append(piece)
        self._next, self._end = piece.base + STUB_SIZE, piece.end
        hooked_to = SLOT_RESTORED if self._preserving else HOOKED_TO
        stubs = Stubs(self._next, piece.end - self._next, hooked_to=hooked_to)
        self._frames.append(describe_stubs(runtime().slab, name, stubs))

    def close(self) -> None:
        """Free all stubs. No call will return to one."""
        for frames, piece in zip(self._frames, self.pieces, strict=True):
            frames.withdraw()
            piece.unmap()


_spaces: dict[tuple[TextMapping, bool], _StubSpace] = {}
"""Keys: the text, and whether its stubs keep every register."""


@once
def return_list() -> ListRecord:
    """The list of a call whose return is hooked by a return stub: one probe, which runs the kretprobes."""
    exit_ = kprobe_runtime().image.address("kprobe_return_handler")
    probe = NativeProbe(
        tracer().table.lines, kind=CALLBACK | HAS_EXIT, flags=COMPLETE, exit=exit_, data_size=RETURN_DATA
    )
    return ListRecord(runtime(), (probe,))


def take_stub(text: TextMapping, preserving: bool = False) -> tuple[TextMapping, int, int]:
    """Memory for a stub near a text: its mapping, its address, and the address of the words that every stub uses."""
    _register_own_code()
    space = _spaces.setdefault((text, preserving), _StubSpace(text, preserving))
    piece, where = space.take()
    return piece, where, piece.base


def give_return_stub(place: Place) -> None:
    """Give the place a return stub, unless it has one. Within `patching()`."""
    if place.record.return_stub:
        return
    preserving = not place.scratch_is_free
    piece, where, pointers = take_stub(place.text, preserving)
    if preserving:
        code = preserving_stub(where, place.address, pointers + _EXIT_PRESERVING)
    else:
        code = return_stub(runtime().template, where, place.address, pointers)
    patching.write(piece, where, code)
    place.record.return_list = return_list().address
    place.record.return_stub = where + RETURN_POINT


def call_through(place: Place, body: int) -> None:
    """Let the place's return stub call `body` for calls that continue at `hooked_point`. Within `patching()`."""
    stub = place.record.return_stub - RETURN_POINT
    space = _spaces[place.text, not place.scratch_is_free]
    piece = next(piece for piece in space.pieces if stub in piece)
    at = stub + TO_BODY_BY_CALL
    patching.write(piece, at, displacement(body, at + 4))


def hooked_point(place: Place) -> int:
    """The address at which a hooked call continues, with its return address on top of the stack; 0 without a stub."""
    if not place.record.return_stub:
        return 0
    drop = DROP_RETURN if place.scratch_is_free else DROP_RETURN_PRESERVING
    return int(place.record.return_stub) - RETURN_POINT + drop


def release_return_stubs(text: TextMapping) -> None:
    """The mapping is about to be freed: free its stubs."""
    for preserving in (False, True):
        space = _spaces.pop((text, preserving), None)
        if space is not None:
            space.close()


def is_return_stub(address: int) -> bool:
    """Whether hooked calls return to `address`."""
    return any(address in piece for space in _spaces.values() for piece in space.pieces)


@once
def _register_own_code() -> None:
    hooks.own_code.add(is_return_stub)


_FAST_LIST = SLOT + 8
"""Offset in a stub of the word that holds its list's address."""


class FastStub:
    """The stub of one detour."""

    def __init__(self, place: Place, detour: Detour) -> None:
        self.detour = detour
        self.head = ctypes.string_at(detour.entry, len(jump(0, 0)))
        self.page, self.where, pointers = take_stub(place.text)
        code = return_stub(
            runtime().template, self.where, place.address, pointers, detour.copies[0], self.where + _FAST_LIST
        )
        patching.write(self.page, self.where, code)
        self.on = False
        self._serve(None)

    def lead(self, p: PlacedProbe) -> None:
        """Lead the detour into the stub, with the list of this probe's FastReturn."""
        self._serve(p)
        if not self.on:
            self.on = True
            patching.sync()
            self.detour.write_head(jump(self.detour.entry, self.where + ENTRY_POINT))

    def lead_back(self, enabled: Collection[PlacedProbe]) -> None:
        """Lead the detour past the stub again.

        Calls that are in the stub at that moment keep its list if its probe is still `enabled`: probes that have joined the
        place since are not called for them, which does not count as a miss.
        """
        if self.on:
            self.on = False
            self.detour.write_head(self.head)
            patching.sync()
        if self._served is not None and self._served not in enabled:
            self._serve(None)

    def _serve(self, p: PlacedProbe | None) -> None:
        self._served = p
        record = tracer().table.lists.get(()) if p is None else _fast_list(p)
        assert record is not None
        patching.write(self.page, self.where + _FAST_LIST, record.address.to_bytes(8, "little"))


_fast_stubs: dict[int, FastStub] = {}
"""Address of the detour -> the return stub."""


def update_fast_returns(place: Place) -> None:
    """Lead the detours of a place's jump into a stub if its present children allow that, else past it. Within `patching()`."""
    assert place.jump is not None
    only = place.children.only
    if only not in place.children.enabled or not place.scratch_is_free or _fast_list(only) is None:
        only = None
    for detour in place.jump.detours:
        stub = _fast_stubs.get(detour.address)
        if stub is None and only is not None:
            stub = _fast_stubs[detour.address] = FastStub(place, detour)
        if only is not None and stub is not None:
            stub.lead(only)
        elif stub is not None:
            stub.lead_back(place.children.enabled)


def _fast_list(p: PlacedProbe) -> ListRecord | None:
    return p.fast.list if isinstance(p.fast, FastReturn) else None


def forget_fast_returns(place: Place) -> None:
    """The code is about to be freed."""
    for detour in place.jump.detours if place.jump is not None else ():
        _fast_stubs.pop(detour.address, None)
