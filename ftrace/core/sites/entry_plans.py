"""Planning how to patch the entry of a function without a stub. Pure functions.

If the first instruction is long enough, a jump replaces it. Otherwise a punned jump, which changes only the first instruction;
otherwise a jump that absorbs the following instructions, where breakpoints lead to their copies; otherwise a breakpoint
(sandbox.x86_64.puns). No thread can be inside the first instruction, so no thread's position has to be checked.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sandbox.native.x86_64.entry_bytes import MOST_READ, REACH
from sandbox.x86_64.encoding import INT3, JMP32_SIZE
from sandbox.x86_64.puns import Window, borrowed, jump_bytes, wider_windows, windows

if TYPE_CHECKING:
    from sandbox.native.x86_64.entry_bytes import EntryInstructions

_SITE = (1 << JMP32_SIZE) - 1
"""A bit for each byte of a site."""
_AT_ONCE = 32
"""Windows that are tried at a time."""


class Mechanism(enum.Enum):
    """How a site is patched."""

    JUMP = "jump"
    PUN = "punned jump"
    ABSORBING = "jump over several instructions"
    BREAKPOINT = "breakpoint"


class Choice(NamedTuple):
    """A possible way to patch an entry: the lengths of the covered instructions, and what the jump can reach, if restricted.

    `borrowing`: the number of instructions after them whose bytes the jump borrows. Their copies are run, too: a CPU that saw
    the jump expects one where these bytes are fetched, and calls that run them there lose 20 cycles each.
    """

    mechanism: Mechanism
    lengths: tuple[int, ...]
    windows: Sequence[Window] = ()
    borrowing: int = 0

    @property
    def copied(self) -> int:
        """The number of instructions that a detour has copies of."""
        return len(self.lengths) + self.borrowing


class Patch(NamedTuple):
    """The bytes of a patched site: 5, of which the first `owned` are written; with a bit for each that is a breakpoint."""

    code: bytes
    owned: int
    inner: int


def choices(entry: EntryInstructions, usable: int) -> Iterator[Choice]:
    """The ways to patch the entry of the function that begins so, best first.

    `usable`: how many bytes from its address on are not patched by another party. Raises ValueError if the first instruction
    cannot be moved.
    """
    length, _is_call, is_last = entry.at(0, 0)
    if usable >= JMP32_SIZE:
        if length >= JMP32_SIZE:
            yield Choice(Mechanism.JUMP, (length,))
            return
        found = _punned(entry, length, usable)
        if found:
            end = JMP32_SIZE + max(window.prefixes for window in found)
            yield Choice(Mechanism.PUN, (length,), found, 0 if is_last else _lent(entry, 1, length, end))
        if not is_last:
            yield from _absorbing(entry, length)
    yield Choice(Mechanism.BREAKPOINT, (length,))


def only_breakpoint(entry: EntryInstructions) -> Choice:
    """The last of the `choices`."""
    return Choice(Mechanism.BREAKPOINT, (entry.at(0, 0)[0],))


def _punned(entry: EntryInstructions, length: int, usable: int) -> list[Window]:
    found = windows(entry.address, length, entry.code[length:REACH])
    return found if usable >= REACH else [w for w in found if w.prefixes + JMP32_SIZE <= usable]


def _lent(entry: EntryInstructions, first: int, at: int, end: int) -> int:
    """How many instructions, of which the `first` is at offset `at`, begin before `end` and can be run elsewhere.

    None after a call: its copy does not return.
    """
    for number in range(first, MOST_READ):
        if at >= end:
            return number - first
        try:
            length, is_call, is_last = entry.at(number, at)
        except ValueError:
            return number - first
        if is_call or is_last:
            return number + 1 - first
        at += length
    return MOST_READ - first


def _absorbing(entry: EntryInstructions, length: int) -> Iterator[Choice]:
    lengths, end, is_last = [length], length, False
    while end < JMP32_SIZE:
        if is_last or entry.entered >> end & 1 or end >= len(entry.code):
            return
        try:
            length, is_call, is_last = entry.at(len(lengths), end)
        except ValueError:
            return
        end += length
        if is_call and end < JMP32_SIZE:
            return
        lengths.append(length)
        found = wider_windows(entry.address, lengths, entry.code[end : end + borrowed(end)])
        lent = 0 if is_last else _lent(entry, len(lengths), end, JMP32_SIZE)
        while some := tuple(itertools.islice(found, _AT_ONCE)):
            yield Choice(Mechanism.ABSORBING, tuple(lengths), some, lent)


def patch_of(choice: Choice, address: int, original: bytes, window: Window | None, target: int) -> Patch:
    """The bytes at `address` for a choice whose jump goes to `target` in `window`. Raises OverflowError if that is out of range.

    `original`: the 5 bytes of the site.
    """
    if choice.mechanism is Mechanism.BREAKPOINT:
        return Patch(bytes([INT3]) + original[1:], 1, 0)
    code = jump_bytes(address, sum(choice.lengths), window.prefixes if window else 0, target)
    inner = 0
    for offset in itertools.accumulate(choice.lengths[:-1]):
        inner |= 1 << offset & _SITE
    return Patch(code + original[len(code) :], len(code), inner)
