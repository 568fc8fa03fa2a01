"""The types of probe event arguments: size, sign, and their names in `format` and `print fmt`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ftrace.core.kstrtox import kstrtoull, simple_strtoul
from ftrace.tracing.probe_args.errors import ErrorCode, error

_DATA_LOC = "__data_loc char[]"


@dataclass(frozen=True)
class FetchType:
    """A type, as written after an argument's colon.

    `size`: bytes in the record; 4 for a string: a word with the offset and length of its text. `field`: the type in the
    event's `format` file. `printf`: the conversion in `print fmt`.
    """

    name: str
    size: int
    signed: bool
    field: str
    printf: str

    @property
    def is_string(self) -> bool:
        """Whether the field is a word with the offset and length of the text."""
        return self.field == _DATA_LOC


@dataclass(frozen=True)
class Bitfield:
    """`width` bits from bit `offset` on; bit 0 is the lowest."""

    width: int
    offset: int


def _numbers() -> list[FetchType]:
    made = []
    for letter, signed, plain, wide in (
        ("u", False, "%u", "%Lu"),
        ("s", True, "%d", "%Ld"),
        ("x", False, "0x%x", "0x%Lx"),
    ):
        for size in (1, 2, 4, 8):
            field = f"{'s' if signed else 'u'}{size * 8}"
            made.append(FetchType(f"{letter}{size * 8}", size, signed, field, wide if size == 8 else plain))
    return made


_SPECIAL = [
    FetchType("string", 4, True, _DATA_LOC, '\\"%s\\"'),
    FetchType("ustring", 4, True, _DATA_LOC, '\\"%s\\"'),
    FetchType("symstr", 4, True, _DATA_LOC, '\\"%s\\"'),
    FetchType("char", 1, False, "u8", "'%c'"),
    FetchType("symbol", 8, False, "u64", "%pS"),
]
TYPES = {kind.name: kind for kind in _SPECIAL + _numbers()}
"""Every type, by name."""

KNOWN_TYPES = "u8 to u64, s8 to s64, x8 to x64, char, symbol, string, ustring, symstr, and b3@5/16 for bits"
"""The same for people; with [N] after them, arrays."""

DEFAULT = TYPES["x64"]
"""The default type of an argument."""

_CONTAINERS = {8: "u8", 16: "u16", 32: "u32", 64: "u64"}


def find_type(name: str | None) -> FetchType | None:
    """The type `name`; the default for None; the container for a bitfield `bWIDTH@OFFSET/SIZE`. None if unknown."""
    if name is None:
        return DEFAULT
    if name.startswith("b"):
        return _container(name)
    return TYPES.get(name)


def _container(name: str) -> FetchType | None:
    _, slash, size = name.partition("/")
    try:
        bits = kstrtoull(size) if slash else 0
    except OSError:
        return None
    return TYPES.get(_CONTAINERS.get(bits, ""))


def parse_bitfield(name: str, kind: FetchType, offset: int) -> Bitfield | None:
    """The bits in a bitfield's type name; None if it is not a bitfield. Raises ProbeError (BAD_BITFIELD at `offset`)."""
    if not name.startswith("b"):
        return None
    width, rest = simple_strtoul(name[1:])
    if width == 0 or not rest.startswith("@"):
        raise error(ErrorCode.BAD_BITFIELD, offset)
    start, tail = simple_strtoul(rest[1:])
    if tail == rest[1:] or not tail.startswith("/") or width + start > kind.size * 8:
        raise error(ErrorCode.BAD_BITFIELD, offset)
    return Bitfield(width, start)


_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def is_good_name(name: str) -> bool:
    """Whether `name` follows the rules of C identifiers."""
    return bool(_IDENTIFIER.fullmatch(name))
