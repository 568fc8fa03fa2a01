"""Names that a probe's arguments can refer to: registers, parameters, variables, fields (`->field.field`), the return value."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ftrace.tracing.probe_args.errors import ErrorCode, error
from ftrace.tracing.probe_args.types import DEFAULT, TYPES, Bitfield, FetchType
from sandbox.images.btf import Array, BtfType, Enum, Int, Member, Pointer, Prototype, Struct
from sandbox.process.once import cached_property

if TYPE_CHECKING:
    from sandbox.images.variables import Variable


@dataclass
class Scope:
    """The context of a probe: what its arguments can refer to.

    `at_entry`: at a function's entry; `at_return`: a return probe. `has_registers`: `%REG` is available.
    `find_prototype` returns the probed function's prototype, `find_variables` what is in scope at an instruction inside it;
    None if that is not known.
    """

    at_entry: bool = False
    at_return: bool = False
    has_registers: bool = True
    find_prototype: Callable[[], Prototype | None] = lambda: None
    find_variables: Callable[[], dict[str, Variable] | None] = lambda: None
    saved: list[int] = field(default_factory=list)
    """The parameters that a return probe saves at entry, in the order of their slots."""
    has_read_prototype: bool = False
    """Whether a prototype has been found for an earlier word: only the first look at it reports that it has no parameters."""

    @property
    def prototype(self) -> Prototype | None:
        """The prototype, if it names parameters or a return value that an argument can use."""
        return self.find_prototype()

    @cached_property
    def variables(self) -> dict[str, Variable] | None:
        """The variables by their names; None at a function's entry and return, and if there is no debug information."""
        return None if self.has_parameters else self.find_variables()

    @property
    def has_parameters(self) -> bool:
        """Whether the function's parameters are available: at its entry, or at its return (saved at entry)."""
        return self.at_entry or self.at_return

    def slot_of(self, parameter: int) -> int:
        """The slot in which parameter number `parameter` (from 0) is saved at entry."""
        if parameter not in self.saved:
            self.saved.append(parameter)
        return self.saved.index(parameter)


@dataclass(frozen=True)
class Typed:
    """The type of a value by a prototype, None if it is unknown; for a bitfield, its place too."""

    type: BtfType | None
    bit_offset: int = 0
    bit_size: int = 0

    @property
    def fetch_type(self) -> FetchType:
        """The default type of an argument."""
        kind = self.type
        if isinstance(kind, (Int, Enum)) and kind.bits in (8, 16, 32, 64):
            return TYPES[f"{'s' if kind.signed else 'u'}{kind.bits}"]
        return DEFAULT

    @property
    def bits(self) -> Bitfield | None:
        """The bits, if the value is a bitfield that does not fill whole bytes."""
        if self.bit_size % 8 == 0 and self.bit_offset == 0:
            return None
        return Bitfield(self.bit_size, self.bit_offset)

    @property
    def is_text(self) -> bool:
        """Whether the value itself is text: an array of characters."""
        return isinstance(self.type, Array) and _is_character(self.type.element)

    @property
    def leads_to_text(self) -> bool:
        """Whether the value can be the address of text: a `char *`, or an integer that holds an address."""
        if isinstance(self.type, Pointer):
            return _is_character(self.type.target)
        return isinstance(self.type, Int) and self.type.bits == 64


def _is_character(kind: BtfType) -> bool:
    return isinstance(kind, Int) and kind.bits == 8


def split_fields(text: str, offset: int) -> tuple[str, str, str]:
    """Split into name, mark (`->`, `.` or empty) and rest. `offset`: of `text` in its word, for the error.

    Raises ProbeError (BAD_HYPHEN).
    """
    end = next((index for index, letter in enumerate(text) if letter in ".-"), len(text))
    for mark in ("->", "."):
        if text.startswith(mark, end):
            return text[:end], mark, text[end + len(mark) :]
    if end < len(text):
        raise error(ErrorCode.BAD_HYPHEN, offset + end)
    return text, "", ""


def follow_fields(start: Typed, path: str, offset: int) -> tuple[Typed, list[int], int]:
    """Follow `path` from a pointer: the type, the byte offset of each dereference, and the last field's place in its word.

    `offset`: of `path` in its word. Raises ProbeError.
    """
    typed, offsets, mark = start, [], "->"
    while mark:
        if not isinstance(typed.type, Pointer):
            raise error(ErrorCode.NO_PTR_STRCT, offset)
        typed, mark, path, offset = _fields(typed.type.target, path, offset)
        offsets.append(typed.bit_offset // 8)
        typed = Typed(typed.type, typed.bit_offset % 8, typed.bit_size)
    return typed, offsets, offset


def _fields(structure: BtfType, path: str, offset: int) -> tuple[Typed, str, str, int]:
    """Follow fields up to the next arrow. Returns the last field's type, the mark after it, the rest and its offset."""
    bits, mark, member = 0, ".", None
    while mark == ".":
        name, mark, rest = split_fields(path, offset)
        member = _member(structure, name, offset)
        bits += member.bit_offset
        structure = member.type
        if mark:
            offset += len(name) + len(mark)
        path = rest
    assert member is not None
    return Typed(structure, bits, member.bit_size), mark, path, offset


def _member(structure: BtfType, name: str, offset: int) -> Member:
    if not isinstance(structure, Struct):
        raise error(ErrorCode.BAD_BTF_TID, offset)
    member = structure.find(name) if name else None
    if member is None:
        raise error(ErrorCode.NO_BTF_FIELD, offset, number=errno.ENOENT)
    return member
