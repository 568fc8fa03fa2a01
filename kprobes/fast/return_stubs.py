"""Where calls return to whose return slot a kretprobe has overwritten: a stub of each place's own, and the list they run."""

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
"""Offset of the third of the words at the beginning of a piece, the one that stubs need which keep every register."""


class _Room:
    """The stubs of one kind near one text. A piece begins with the addresses that every stub has to know."""

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
        """Give everything back; no call is to return there."""
        for frames, piece in zip(self._frames, self.pieces, strict=True):
            frames.withdraw()
            piece.unmap()


_rooms: dict[tuple[TextMapping, bool], _Room] = {}
"""By the text, and whether its stubs keep every register."""


@cache
def return_list() -> ListRecord:
    """What a call comes in with whose return was hooked here: a list of one, which runs the kretprobes."""
    exit_ = kprobe_runtime().image.address("kprobe_return_handler")
    probe = NativeProbe(
        tracer().table.lines, kind=CALLBACK | HAS_EXIT, flags=COMPLETE, exit=exit_, data_size=RETURN_DATA
    )
    return ListRecord(runtime(), (probe,))


def take_stub(text: TextMapping, keeping: bool = False) -> tuple[TextMapping, int, int]:
    """Room for a stub near a text: its mapping, its address, and where the words are that every stub has to know."""
    _tell_whose_code_it_is()
    room = _rooms.setdefault((text, keeping), _Room(text, keeping))
    piece, where = room.take()
    return piece, where, piece.base


def give_return_stub(place: Aggregate) -> None:
    """Let the returns of the function at `place` be hooked, if they cannot be yet. Within `patching()`."""
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
    """Let the stub of a place call `body` for calls that go on at `hooked_point`. Within `patching()`."""
    stub = place.record.return_stub - RETURN_POINT
    room = _rooms[place.text, not place.scratch_is_free]
    piece = next(piece for piece in room.pieces if stub in piece)
    at = stub + TO_BODY_BY_CALL
    patching.write(piece, at, displacement(body, at + 4))


def hooked_point(place: Aggregate) -> int:
    """Where a call goes on whose return has been hooked, its return address on top of the stack; 0 without a stub."""
    if not place.record.return_stub:
        return 0
    drop = DROP_RETURN if place.scratch_is_free else DROP_RETURN_KEEPING
    return int(place.record.return_stub) - RETURN_POINT + drop


def release_return_stubs(text: TextMapping) -> None:
    """A mapping is going away: so do its stubs."""
    for keeping in (False, True):
        room = _rooms.pop((text, keeping), None)
        if room is not None:
            room.close()


def is_return_stub(address: int) -> bool:
    """Whether hooked calls return to `address`."""
    return any(address in piece for room in _rooms.values() for piece in room.pieces)


@cache
def _tell_whose_code_it_is() -> None:
    runtime().own_code.append(is_return_stub)
