"""The table of stacks that hits fill (ftrace.hit.stacks), read from its memory: nodes, Python's code objects, and their lines.

Where Python frames are is read from tables of lines as CPython has them: Objects/locations.md, Objects/lnotab_notes.txt.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from sandbox.process.once import cached_property

PYTHON, CUT = 1 << 63, 1 << 62
"""As in `ftrace.hit.stacks.stack_table`, which takes too long to import in a launcher."""
_HEAD = struct.Struct("<5Q24x")
NODE = struct.Struct("<4Q")
CODE = struct.Struct("<5Q24x")
_TEXT = struct.Struct("<2I")
_PLACE = (1 << 32) - 1
_NUMBER = (1 << 31) - 1
_DATA = 3
_ENCODINGS = {0: "ascii", 1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}
_NO_LINE = -128
_WITH_LINE, _NO_COLUMN, _LONG = (10, 11, 12), 13, 14


class Code(NamedTuple):
    """A code object. `name`: qualified from Python 3.11 on; `lines`: its co_linetable."""

    filename: str
    name: str
    first: int
    lines: bytes


class PythonPlace(NamedTuple):
    """A line that a Python function executes. `line`: 0 if it is not known."""

    name: str
    filename: str
    line: int

    def __str__(self) -> str:
        return f"{self.name} ({self.filename.rpartition('/')[2]}:{self.line})"


class StackCounts(NamedTuple):
    """What was counted of one stack. `frames`: outermost first, a place in Python, or an address; CUT: others are left out."""

    frames: tuple[int | PythonPlace, ...]
    calls: int
    weight: int


class StackMemory:
    """The table at one moment. `read`: bytes of its memory, by offset and size; `pieces`: the offset of each piece.

    `minor`: of Python's version.
    """

    def __init__(self, read: Callable[[int, int], bytes], pieces: dict[str, int], minor: int) -> None:
        self._read, self._pieces, self._minor = read, pieces, minor
        self._nodes, self._codes, self._texts, self.lost, self.cut = _HEAD.unpack(read(pieces["head"], _HEAD.size))
        self._places: dict[int, PythonPlace] = {}
        self._known: dict[int, Code] = {}

    def stacks(self) -> Iterator[StackCounts]:
        """The stacks that were counted."""
        for number, (_, _, calls, weight) in enumerate(self._tree):
            if calls:
                yield StackCounts(tuple(map(self._frame, self.frames(number))), calls, weight)

    def frames(self, number: int) -> list[int]:
        """The words of the stack that ends with a node, outermost first."""
        found = []
        while number:
            frame, number, _, _ = self._tree[number]
            found.append(frame)
        return found[::-1]

    @cached_property
    def _tree(self) -> list[tuple[int, ...]]:
        data = self._read(self._pieces["nodes"], NODE.size * (self._nodes + 1))
        return list(NODE.iter_unpack(data[: len(data) // NODE.size * NODE.size]))

    def _frame(self, frame: int) -> int | PythonPlace:
        return self.place(frame) if frame & PYTHON else frame

    def code(self, number: int) -> Code:
        """A code object by its number."""
        known = self._known.get(number)
        if known is None:
            at = self._pieces["codes"] + CODE.size * number
            _, first, filename, name, lines = CODE.unpack(self._read(at, CODE.size))
            known = self._known[number] = Code(self._text(filename), self._text(name), first, self._bytes(lines)[1])
        return known

    def place(self, frame: int) -> PythonPlace:
        """The place of a frame of Python."""
        known = self._places.get(frame)
        if known is None:
            code = self.code(frame >> 32 & _NUMBER)
            line = line_at(code, frame & _PLACE, self._minor)
            known = self._places[frame] = PythonPlace(code.name, code.filename, line)
        return known

    def _text(self, offset: int) -> str:
        kind, data = self._bytes(offset)
        return data.decode(_ENCODINGS.get(kind, "latin-1"), "surrogatepass") if offset else "?"

    def _bytes(self, offset: int) -> tuple[int, bytes]:
        if not offset:
            return _DATA, b""
        size, kind = _TEXT.unpack(self._read(self._pieces["texts"] + offset, _TEXT.size))
        return kind, self._read(self._pieces["texts"] + offset + _TEXT.size, size)


def line_at(code: Code, offset: int, minor: int) -> int:
    """The line of the instruction at an offset; 0 if it has none."""
    found = 0
    for start, line in _lines_3_10(code) if minor == 10 else _lines(code):
        if start > offset:
            break
        found = line
    return found


def _lines_3_10(code: Code) -> Iterator[tuple[int, int]]:
    """The offsets at which lines begin, and the lines."""
    at, line = 0, code.first
    for length, delta in struct.iter_unpack("<Bb", code.lines[: len(code.lines) & ~1]):
        line += 0 if delta == _NO_LINE else delta
        yield at, 0 if delta == _NO_LINE else line
        at += length


def _lines(code: Code) -> Iterator[tuple[int, int]]:
    """The same for Python 3.11 and later."""
    data, at, offset, line = code.lines, 0, 0, code.first
    while at < len(data):
        kind, length = data[at] >> 3 & 15, (data[at] & 7) + 1
        at += 1
        delta = 0
        if kind in _WITH_LINE:
            delta = kind - _WITH_LINE[0]
        elif kind in (_NO_COLUMN, _LONG):
            number, at = _varint(data, at)
            delta = -(number >> 1) if number & 1 else number >> 1
        while at < len(data) and not data[at] & 128:  # what follows are columns
            at += 1
        line += delta
        yield offset, 0 if kind == 15 else line
        offset += 2 * length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of six bits in each byte, and where it ends."""
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 63) << shift
        shift += 6
        if not byte & 64:
            break
    return value, at
