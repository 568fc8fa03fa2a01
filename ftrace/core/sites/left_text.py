"""Probed text that forks have left with children which cannot change it: no Python runs in what C code has forked.

A child has the text that its parent had when it was forked, on the same memory file, until one of them changes it: then that one
gets a copy (sandbox.process.shared_text). So this process still reaches what it has left, by a view of that file, and can write
there what its own text is after probes are gone. What lies in one aligned word is written by one store. Else a breakpoint comes
first, as in ftrace.hit.poke; a child that hits it tries again until `_word` says that all is written (ftrace.hit.text_poke).
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ftrace.core.runtime import runtime
from sandbox.images.process_text import patchable_texts
from sandbox.memory import mappings
from sandbox.memory.mappings import PAGE, LeftView, TextMapping
from sandbox.memory.pages import PROT_READ, PROT_WRITE, mprotect
from sandbox.process.once import once
from sandbox.x86_64.encoding import INT3, JMP32, JMP32_SIZE

_WORD = 8
_PAUSE = 0.01
"""Seconds after which every core that runs a child executes what was written: an interrupt has come, or a switch of threads."""


class _Change(NamedTuple):
    """Bytes of text that differ: their place in the view that is written, and what is wanted there."""

    at: int
    wanted: bytes
    heads: Sequence[int]
    """Offsets at which an instruction begins, of the present text."""

    @property
    def is_in_one_word(self) -> bool:
        return self.at // _WORD == (self.at + len(self.wanted) - 1) // _WORD


def keep() -> None:
    """From now on, text that forks leave with children can be restored."""
    runtime().image.variable("left_text_restored").value = ctypes.addressof(_word())
    mappings.keeps_left[0] = True


@once
def _word() -> ctypes.c_uint64:
    """Not 0 while text of children is changed. They share it."""
    return ctypes.c_uint64.from_address(mappings.map_inherited(PAGE))


def restore() -> None:
    """Let children have the text that this process has. Nothing is kept any more. Raises OSError."""
    mappings.keeps_left[0] = False
    for text in patchable_texts():
        with text.writable() as delta:
            views, text.left = text.left, []
            changes = [list(_changes(text, text.base + delta, view)) for view in views]
        for view, found in zip(views, changes, strict=True):
            mprotect(view.address, view.size, PROT_READ | PROT_WRITE)
            _write(found)
            mappings.release(view.address, view.size)


def _write(changes: list[_Change]) -> None:
    """Make the changes, which other processes may be executing."""
    for change in changes:
        if change.is_in_one_word:
            low, at = change.at % _WORD, change.at - change.at % _WORD
            word = bytearray(ctypes.string_at(at, _WORD))
            word[low : low + len(change.wanted)] = change.wanted
            ctypes.c_uint64.from_address(at).value = int.from_bytes(word, "little")
    others = [change for change in changes if not change.is_in_one_word]
    if others:
        _word().value = 1
        try:
            _write_in_stages(others)
        finally:
            _word().value = 0


def _write_in_stages(changes: list[_Change]) -> None:
    """As ftrace.hit.poke. Backwards, so that an instruction into whose bytes a jump was written is whole when it begins."""
    for change in changes:
        for offset in change.heads:
            ctypes.memset(change.at + offset, INT3, 1)
    time.sleep(_PAUSE)
    for is_head in (False, True):
        for change in changes:
            for offset in reversed(range(len(change.wanted))):
                if (offset in change.heads) == is_head:
                    ctypes.memset(change.at + offset, change.wanted[offset], 1)
        time.sleep(_PAUSE)


def _changes(text: TextMapping, own: int, left: LeftView) -> Iterator[_Change]:
    """Where a view of the text differs from this process's own. `own`: what that writes to."""
    mprotect(left.address, left.size, PROT_READ)
    view = left.address - left.offset
    pages = [
        at
        for at in range(left.offset, left.offset + left.size, PAGE)
        if ctypes.string_at(own + at, PAGE) != ctypes.string_at(view + at, PAGE)
    ]
    while pages:
        count = next((n for n, at in enumerate(pages) if at != pages[0] + n * PAGE), len(pages))
        first, size = pages[0], count * PAGE  # together: an instruction may begin on one page and end on the next
        for start, end in _spans(ctypes.string_at(own + first, size), ctypes.string_at(view + first, size)):
            yield _change(text, own, view, left.offset, first + start, first + end)
        del pages[:count]


def _spans(one: bytes, other: bytes) -> Iterator[tuple[int, int]]:
    """Ranges of bytes that differ. What is near each other is one range: it may be one instruction."""
    start = end = -_WORD
    for at in range(len(one)):
        if one[at] != other[at]:
            if at - end >= _WORD:
                if end > 0:
                    yield start, end
                start = at
            end = at + 1
    if end > 0:
        yield start, end


def _change(text: TextMapping, own: int, view: int, lowest: int, start: int, end: int) -> _Change:
    """The change of a range. If the jump that was written begins before it with the same byte, that belongs to it."""
    before = max(start - JMP32_SIZE + 1, lowest)
    found = next((at for at in range(before, start) if _leads_out(text, view, at)), start)
    present = ctypes.string_at(view + found, end - found)
    return _Change(view + found, ctypes.string_at(own + found, end - found), list(_heads(present)))


def _leads_out(text: TextMapping, view: int, at: int) -> bool:
    """Whether there is a jump to memory that is not of this text."""
    code = ctypes.string_at(view + at, JMP32_SIZE)
    target = text.base + at + JMP32_SIZE + int.from_bytes(code[1:], "little", signed=True)
    return code[0] == JMP32 and target not in text


def _heads(present: bytes) -> Iterator[int]:
    """Offsets of the beginning, of jumps, and of breakpoints outside their displacements."""
    at = 0
    while at < len(present):
        is_jump = present[at] == JMP32
        if not at or is_jump or present[at] == INT3:
            yield at
        at += JMP32_SIZE if is_jump else 1
