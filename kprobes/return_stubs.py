"""Where calls return to whose return slot a kretprobe has overwritten: a stub of each place's own, and the list they run."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from ftrace.hit.records import CALLBACK, COMPLETE, HAS_EXIT
from ftrace.lists import ListRecord
from ftrace.probe import NativeProbe
from ftrace.runtime import runtime
from ftrace.tracer import tracer
from ftrace.unwinding import FrameDescription, describe_stubs
from ftrace.x86_64.stubs import RETURN_POINT, STUB_SIZE, TO_BODY_BY_CALL
from kprobes import patching
from kprobes.hit.records import RETURN_DATA
from kprobes.hit.runtime import kprobe_runtime
from kprobes.x86_64.relocate import displacement
from kprobes.x86_64.return_stub import DROP_RETURN, return_stub
from sandbox import memory

if TYPE_CHECKING:
    from kprobes.aggregate import Aggregate
    from sandbox.memory import TextMapping

_PIECE = 16 * memory.PAGE


class _Room:
    """The stubs near one text. The first 16 bytes of a piece are the addresses that every stub has to know."""

    def __init__(self, text: TextMapping) -> None:
        self.text = text
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
        piece = memory.allocate_text((self.text.base, self.text.end), _PIECE, name)
        image = runtime().image
        words = (image.address("ftrace_exit_complete"), image.address("ftrace_entry_slow"))
        patching.write(piece, piece.base, b"".join(word.to_bytes(8, "little") for word in words))
        self.pieces.append(piece)
        self._next, self._end = piece.base + STUB_SIZE, piece.end
        self._frames.append(describe_stubs(runtime().slab, name, self._next, piece.end - self._next, False))

    def close(self) -> None:
        """Give everything back; no call is to return there."""
        for frames, piece in zip(self._frames, self.pieces, strict=True):
            frames.withdraw()
            piece.unmap()


_rooms: dict[TextMapping, _Room] = {}


@cache
def return_list() -> ListRecord:
    """What a call comes in with whose return was hooked here: a list of one, which runs the kretprobes."""
    exit_ = kprobe_runtime().image.address("kprobe_return_handler")
    probe = NativeProbe(
        tracer().table.lines, kind=CALLBACK | HAS_EXIT, flags=COMPLETE, exit=exit_, data_size=RETURN_DATA
    )
    return ListRecord(runtime(), (probe,), after_prologue=False)


def take_stub(text: TextMapping) -> tuple[TextMapping, int, int]:
    """Room for a stub near a text: its mapping, its address, and where the words are that every stub has to know."""
    _tell_whose_code_it_is()
    room = _rooms.setdefault(text, _Room(text))
    piece, where = room.take()
    return piece, where, piece.base


def give_return_stub(place: Aggregate) -> None:
    """Let the returns of the function at `place` be hooked, if they cannot be yet. Within `patching()`."""
    if place.record.return_stub:
        return
    piece, where, pointers = take_stub(place.text)
    patching.write(piece, where, return_stub(runtime().template, where, place.address, pointers))
    place.record.return_list = return_list().address
    place.record.return_stub = where + RETURN_POINT


def call_through(place: Aggregate, body: int) -> None:
    """Let the stub of a place call `body` for calls that go on at `hooked_point`. Within `patching()`."""
    stub = place.record.return_stub - RETURN_POINT
    piece = next(piece for piece in _rooms[place.text].pieces if stub in piece)
    at = stub + TO_BODY_BY_CALL
    patching.write(piece, at, displacement(body, at + 4))


def hooked_point(place: Aggregate) -> int:
    """Where a call goes on whose return has been hooked, its return address on top of the stack; 0 without a stub."""
    return place.record.return_stub - RETURN_POINT + DROP_RETURN if place.record.return_stub else 0


def release_return_stubs(text: TextMapping) -> None:
    """A mapping is going away: so do its stubs."""
    room = _rooms.pop(text, None)
    if room is not None:
        room.close()


def is_return_stub(address: int) -> bool:
    """Whether hooked calls return to `address`."""
    return any(address in piece for room in _rooms.values() for piece in room.pieces)


@cache
def _tell_whose_code_it_is() -> None:
    runtime().own_code.append(is_return_stub)
