"""Classifying the code that a library's unwind tables describe: functions, where that can be shown, or something else."""

from __future__ import annotations

import re
from array import array
from collections.abc import Set
from ctypes import string_at
from enum import Enum

from sandbox.elf import tables as elf
from sandbox.x86_64.references import referred_to

_WORD = 8
_PF_W = 2
_COLD = re.compile(r"\.cold(\.\d+)?$")


class Kind(Enum):
    """The kind of a stretch of code. The value is the suffix of its name if it has no symbol, the text the reason why its returns
    cannot be probed."""

    FUNCTION = "", ""
    PLT = ".plt", "it is the procedure linkage table, where each entry jumps on to a function of its own"
    SIGNAL_FRAME = ".signal-frame", "signal handlers return to it, and nobody calls it"
    COLD = ".cold", "it is a part of a function: where it begins the stack is not as a call leaves it"
    UNKNOWN = ".part", "nothing shows that it is a function: it has no symbol, and no call or pointer leads to it"

    def __init__(self, suffix: str, reason: str) -> None:
        self.suffix = suffix
        self.reason = reason


def is_cold(name: str) -> bool:
    """Whether a compiler has named it as a part of a function that is hardly ever run, which it jumps to."""
    return bool(_COLD.search(name))


def linkage_tables(file: elf.ElfFile, base: int) -> tuple[tuple[int, int], ...]:
    """Where the procedure linkage tables of a library lie that was loaded at `base`: (start, end)."""
    names = (".plt", ".plt.got", ".plt.sec", ".iplt")
    sections = [file.sections[index] for name in names for index in file.sections_named(name)]
    return tuple((base + section.address, base + section.address + section.size) for section in sections)


def pointed_to(file: elf.ElfFile, base: int, among: Set[int]) -> set[int]:
    """The addresses of `among` that the library's code calls or takes, or that its data points to.

    Code is read from the file, so probes do not matter; data is read as the dynamic loader has relocated it.
    """
    found: set[int] = set()
    for segment in file.segments():
        start = base + segment.address
        if segment.type == elf.PT_LOAD and segment.flags & elf.PF_X:
            code = bytes(file.data[segment.offset : segment.offset + segment.file_size])
            found |= referred_to(code, start, among)
        elif segment.type == elf.PT_LOAD and segment.flags & _PF_W:
            first, last = -start % _WORD, (start + segment.file_size) & -_WORD
            found |= among & set(array("Q", string_at(start + first, last - start - first)))
    return found
