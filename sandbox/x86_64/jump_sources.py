"""Where a register comes from through which a function jumps: `mov` of a linkage table's slot, `lea` of a function's address.

All loads of the register in the function count, of other registers too that are moved to it: which of them a jump sees is not
followed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from sandbox.x86_64.decoding import Decoded

_REGISTER = re.compile(r"r(?:[a-d]x|[sd]i|bp|\d+)")
_JUMP = re.compile(rb"\xff[\xe0-\xe7]")
_LOAD = re.compile(rb"[\x48\x4c][\x8b\x8d][\x05\x0d\x15\x1d\x25\x2d\x35\x3d]")
"""`mov` or `lea` of memory near rip to a register."""


def loads_of(code: Collection[Decoded], jump: Decoded) -> Iterator[Decoded]:
    """The loads from near rip that a jump through a register may depend on, each as a jump through that slot or to that place."""
    if not _REGISTER.fullmatch(jump.operands):
        return
    moves = [(insn, insn.operands.split(", ", 1)) for insn in code if insn.mnemonic[:4] in ("mov", "lea", "cmov")]
    wanted, known = {jump.operands}, 0
    while known < len(wanted):
        known = len(wanted)
        wanted |= {words[-1] for _, words in moves if words[0] in wanted and _REGISTER.fullmatch(words[-1])}
    for insn, words in moves:
        if words[0] in wanted and "[rip " in words[-1]:
            yield insn._replace(mnemonic="jmp", operands=words[-1])


def jumps_by_register(code: bytes) -> bool:
    """Whether the code seems to have a jump through a register."""
    return _JUMP.search(code) is not None


def loaded_places(code: bytes, start: int) -> Iterator[int]:
    """The addresses near rip that the code at `start`, if it jumps through a register, seems to load, or to load from."""
    if jumps_by_register(code):
        for load in _LOAD.finditer(code):
            end = load.end() + 4
            yield start + end + int.from_bytes(code[end - 4 : end], "little", signed=True)
