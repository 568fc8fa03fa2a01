"""Return stubs: each place has one; calls whose return slot a kretprobe has overwritten return to it. And their list."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from ftrace.hit.records import CALLBACK, COMPLETE, HAS_EXIT
from ftrace.probe import NativeProbe
from ftrace.runtime import runtime
from ftrace.sites.lists import ListRecord
from ftrace.tracer import tracer
from ftrace.unwind.unwinding import FrameDescription, describe_stubs
from ftrace.x86_64.keeping_stub import DROP_RETURN_KEEPING, ROOM_MADE, keeping_stub
from ftrace.x86_64.stubs import RETURN_POINT, STUB_SIZE, TO_BODY_BY_CALL
from ftrace.x86_64.unwind import HOOKED_TO
from kprobes.breakpoint import patching
from kprobes.hit.records import RETURN_DATA
from kprobes.hit.runtime import kprobe_runtime
from kprobes.x86_64.return_stub import DROP_RETURN, return_stub
from sandbox.memory import mappings
from sandbox.x86_64.encoding import displacement

if TYPE_CHECKING:
    from kprobes.place.aggregate import Aggregate
    from sandbox.memory.mappings import TextMapping

_PIECE = 16 * mappings.PAGE


_EXIT_KEEPING = 16
"""Offset of the third word at the start of an allocation; only stubs that keep every register need it."""


class _StubSpace:
    """The stubs of one kind near one text. Each allocation begins with the addresses that every stub uses."""

    def __init__(self, text: TextMapping, keeping: bool) -> None:
        self.text = text
        self._keeping = keeping
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
        words = tuple(map(address, ("ftrace_exit_complete", "ftrace_entry_slow", "ftrace_exit_keeping_all")))
        patching.write(piece, piece.base, b"".join(word.to_bytes(8, "little") for word in words))
        self.pieces.append(piece)
        self._next, self._end = piece.base + STUB_SIZE, piece.end
        hooked_to = ROOM_MADE if self._keeping else HOOKED_TO
        size = piece.end - self._next
        self._frames.append(describe_stubs(runtime().slab, name, self._next, size, False, hooked_to))

    def close(self) -> None:
        """Free all stubs. No call will return to one."""
        for frames, piece in zip(self._frames, self.pieces, strict=True):
            frames.withdraw()
            piece.unmap()


_spaces: dict[tuple[TextMapping, bool], _StubSpace] = {}
"""Keys: the text, and whether its stubs keep every register."""


@cache
def return_list() -> ListRecord:
    """The list of a call whose return is hooked by a return stub: one probe, which runs the kretprobes."""
    exit_ = kprobe_runtime().image.address("kprobe_return_handler")
    probe = NativeProbe(
        tracer().table.lines, kind=CALLBACK | HAS_EXIT, flags=COMPLETE, exit=exit_, data_size=RETURN_DATA
    )
    return ListRecord(runtime(), (probe,))


def take_stub(text: TextMapping, keeping: bool = False) -> tuple[TextMapping, int, int]:
    """Memory for a stub near a text: its mapping, its address, and the address of the words that every stub uses."""
    _register_own_code()
    space = _spaces.setdefault((text, keeping), _StubSpace(text, keeping))
    piece, where = space.take()
    return piece, where, piece.base


def give_return_stub(place: Aggregate) -> None:
    """Give the place a return stub, unless it has one. Within `patching()`."""
    if place.record.return_stub:
        return
    keeping = not place.scratch_is_free
    piece, where, pointers = take_stub(place.text, keeping)
    if keeping:
        code = keeping_stub(where, place.address, pointers + _EXIT_KEEPING)
    else:
        code = return_stub(runtime().template, where, place.address, pointers)
    patching.write(piece, where, code)
    place.record.return_list = return_list().address
    place.record.return_stub = where + RETURN_POINT


def call_through(place: Aggregate, body: int) -> None:
    """Let the place's return stub call `body` for calls that continue at `hooked_point`. Within `patching()`."""
    stub = place.record.return_stub - RETURN_POINT
    space = _spaces[place.text, not place.scratch_is_free]
    piece = next(piece for piece in space.pieces if stub in piece)
    at = stub + TO_BODY_BY_CALL
    patching.write(piece, at, displacement(body, at + 4))


def hooked_point(place: Aggregate) -> int:
    """Where a hooked call continues, with its return address on top of the stack; 0 if the place has no stub."""
    if not place.record.return_stub:
        return 0
    drop = DROP_RETURN if place.scratch_is_free else DROP_RETURN_KEEPING
    return int(place.record.return_stub) - RETURN_POINT + drop


def release_return_stubs(text: TextMapping) -> None:
    """The mapping is about to be freed: free its stubs."""
    for keeping in (False, True):
        space = _spaces.pop((text, keeping), None)
        if space is not None:
            space.close()


def is_return_stub(address: int) -> bool:
    """Whether hooked calls return to `address`."""
    return any(address in piece for space in _spaces.values() for piece in space.pieces)


@cache
def _register_own_code() -> None:
    runtime().own_code.append(is_return_stub)
