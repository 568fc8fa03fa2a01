"""Planning how to patch the entry of a function without a stub. Pure functions.

If the first instruction is long enough, a jump replaces it. Otherwise a punned jump, which changes only the first instruction;
otherwise a jump that absorbs the following instructions, where breakpoints lead to their copies; otherwise a breakpoint
(sandbox.x86_64.puns). No thread can be inside the first instruction, so no thread's position has to be checked.
"""

from __future__ import annotations

import enum
import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

from sandbox.x86_64.encoding import INT3, JMP32_SIZE
from sandbox.x86_64.instruction import Flow, Instruction, decode
from sandbox.x86_64.puns import Window, borrowed, jump_bytes, wider_windows, windows
from sandbox.x86_64.relocate import refuse_to_move

REACH = 8
"""The longest jump with prefixes at an entry, in bytes, including the bytes it borrows."""
_SITE = (1 << JMP32_SIZE) - 1
"""A bit for each byte of a site."""
_AT_ONCE = 32
"""Windows that are tried at a time."""
_BRANCH = re.compile(rb"[\x70-\x7f\xe0-\xe3\xeb](?=(.))|(?:\xe9|\x0f[\x80-\x8f])(?=(....))", re.DOTALL)


class Mechanism(enum.Enum):
    """How a site is patched."""

    JUMP = "jump"
    PUN = "punned jump"
    ABSORBING = "jump over several instructions"
    BREAKPOINT = "breakpoint"


class Choice(NamedTuple):
    """A possible way to patch an entry: the covered instructions, and the windows that the jump can reach, if restricted."""

    mechanism: Mechanism
    insns: tuple[Instruction, ...]
    windows: tuple[Window, ...] = ()


class Patch(NamedTuple):
    """The bytes of a patched site: 5, of which the first `owned` are written; with a bit for each that is a breakpoint."""

    code: bytes
    owned: int
    inner: int


def choices(code: bytes, address: int, usable: int) -> Iterator[Choice]:
    """The ways to patch the entry of the function with these bytes at `address`, best first.

    `code`: its first bytes, as many as are scanned for jumps into the entry. `usable`: how many bytes from `address` on are not
    patched by another party. Raises ValueError if the first instruction cannot be moved.
    """
    first = _decoded(code, address, 0)
    if usable >= JMP32_SIZE:
        if first.length >= JMP32_SIZE:
            yield Choice(Mechanism.JUMP, (first,))
            return
        yield from _punned(code, first, usable)
        yield from _absorbing(code, first)
    yield Choice(Mechanism.BREAKPOINT, (first,))


def only_breakpoint(code: bytes, address: int) -> Choice:
    """The last of the `choices`."""
    return Choice(Mechanism.BREAKPOINT, (_decoded(code, address, 0),))


def _decoded(code: bytes, address: int, at: int) -> Instruction:
    insn = decode(code[at : at + 15], address + at)
    refuse_to_move(insn)
    return insn


def _punned(code: bytes, first: Instruction, usable: int) -> Iterator[Choice]:
    following = code[first.length : REACH]
    found = windows(first.address, first.length, following)
    found = [window for window in found if window.prefixes + JMP32_SIZE <= usable]
    if found:
        yield Choice(Mechanism.PUN, (first,), tuple(found))


def _absorbing(code: bytes, first: Instruction) -> Iterator[Choice]:
    insns = [first]
    entered = entered_at(code)
    while (size := insns[-1].end - first.address) < JMP32_SIZE:
        if size in entered or size >= len(code):
            return
        try:
            next_insn = _decoded(code, first.address, size)
        except ValueError:
            return
        if insns[-1].flow in _ENDS or (next_insn.flow in _CALLS and next_insn.end - first.address < JMP32_SIZE):
            return
        insns.append(next_insn)
        end = next_insn.end - first.address
        following = code[end : end + borrowed(end)]
        found = wider_windows(first.address, [insn.length for insn in insns], following)
        while some := tuple(itertools.islice(found, _AT_ONCE)):
            yield Choice(Mechanism.ABSORBING, tuple(insns), some)


_CALLS = (Flow.CALL, Flow.INDIRECT_CALL)
_ENDS = (Flow.JUMP, Flow.INDIRECT_JUMP, Flow.RETURN, Flow.TRAP)


def entered_at(code: bytes) -> set[int]:
    """Offsets among the first bytes that the code may jump to; all bytes that look like a jump count as one."""
    found = set()
    for match in _BRANCH.finditer(code):
        field = match[1] or match[2]
        at = match.end() + len(field) + int.from_bytes(field, "little", signed=True)
        if 0 < at < REACH:
            found.add(at)
    return found


def patch_of(choice: Choice, original: bytes, window: Window | None, target: int) -> Patch:
    """The bytes for a choice whose jump goes to `target` in `window`. Raises OverflowError if that is out of range.

    `original`: the 5 bytes of the site.
    """
    first = choice.insns[0]
    if choice.mechanism is Mechanism.BREAKPOINT:
        return Patch(bytes([INT3]) + original[1:], 1, 0)
    own = choice.insns[-1].end - first.address
    code = jump_bytes(first.address, own, window.prefixes if window else 0, target)
    inner = 0
    for insn in choice.insns[1:]:
        inner |= 1 << insn.address - first.address & _SITE
    return Patch(code + original[len(code) :], len(code), inner)
