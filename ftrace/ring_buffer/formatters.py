"""Formatters of records, compiled once for each event: from the places of its fields to a function of a record's bytes.

A reader shows millions of records. One call of struct and one of `%` make the text of each, where a walk over the fields with
decisions at each took ten times as long.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar

from ftrace.ring_buffer.reader import Record

_KEPT = 1 << 16
K = TypeVar("K")
V = TypeVar("V")
Show = Callable[[bytes], str]
"""show(data): the text of a record that begins with its common fields."""
_CODES = {(1, False): "B", (1, True): "b", (2, False): "H", (2, True): "h", (4, False): "I", (4, True): "i"} | {
    (8, False): "Q",
    (8, True): "q",
}


class Memo(dict[K, V]):
    """Values that are kept from the first use of a key: symbols of addresses, formatters of events. Too many are forgotten."""

    def __init__(self, make: Callable[[K], V]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: K) -> V:
        if len(self) >= _KEPT:
            self.clear()
        found = self[key] = self._make(key)
        return found


class Number(NamedTuple):
    """A number of a record as text. `conversion`: of printf; `texts`: with `%s`, instead of the number the text of it."""

    offset: int
    size: int
    is_signed: bool
    conversion: str = "%d"
    texts: Memo[int, str] | None = None


Piece = str | Number | Show
"""A part of a text: fixed, a number, or anything that a function makes of the whole record."""


def compiled(pieces: Sequence[Piece]) -> Show:
    """The function that makes the text of a record. Bytes that are missing at its end are taken for zeros."""
    template, arguments, names = "", [], dict[str, Any]()
    fields: dict[tuple[int, int, bool], str] = {}
    for number, piece in enumerate(pieces):
        if isinstance(piece, str):
            template += piece.replace("%", "%%")
            continue
        template += piece.conversion if isinstance(piece, Number) else "%s"
        name = f"p{number}"
        if isinstance(piece, Number):
            value = fields.setdefault((piece.offset, piece.size, piece.is_signed), f"v{len(fields)}")
            arguments.append(value if piece.texts is None else f"{name}[{value}]")
            names[name] = piece.texts
        else:
            arguments.append(f"{name}(data)")
            names[name] = piece
    unpacks = _unpacks(fields, names)
    code = _code(tuple(unpacks), ", ".join(arguments))
    exec(code, names | {"template": template, "error": struct.error}, made := dict[str, Any]())
    show: Show = made["show"]
    return show


def _unpacks(fields: dict[tuple[int, int, bool], str], names: dict[str, Any]) -> list[str]:
    """The statements that read the fields. Fields that overlap are read one after the other."""
    left = sorted(fields.items())
    statements: list[str] = []
    while left:
        form, end, taken = "<", 0, []
        for field in left:
            (offset, size, is_signed), _ = field
            if offset >= end:
                form += f"{offset - end}x{_CODES[size, is_signed]}"
                end = offset + size
                taken.append(field)
        left = [field for field in left if field not in taken]
        packed, name = struct.Struct(form), f"unpack{len(statements)}"
        names[name], names[f"{name}_size"] = packed.unpack_from, packed.size
        targets = "".join(f"{value}, " for _, value in taken)
        statements.append(f"{targets}= {name}(data)")
    return statements


@cache
def _code(unpacks: tuple[str, ...], arguments: str) -> Any:
    padded = [f"        {line.replace('(data)', '(data.ljust(' + _size_of(line) + ', zero))')}\n" for line in unpacks]
    body = "".join(f"        {line}\n" for line in unpacks)
    guarded = f"    try:\n{body}    except error:\n{''.join(padded)}" if unpacks else ""
    shown = f"template % ({arguments},)" if arguments else "template % ()"
    return compile(f"zero = b'\\0'\ndef show(data, zero=zero):\n{guarded}    return {shown}\n", "<record>", "exec")


def _size_of(unpack: str) -> str:
    return f"{unpack.partition('= ')[2].removesuffix('(data)')}_size"


_COMMON = struct.Struct("<H2xi")
_SECOND = 1_000_000


def line_formatter(
    front: Callable[[tuple[int, int]], str],
    show_of: Callable[[int], Show | None],
    in_ns: bool,
    unusual: Callable[[Record], str] = repr,
) -> Callable[[Record], str]:
    """The function from a record to its line: who, when, what.

    `front((tid, slot))`: the text before the time; `show_of(type)`: an event's formatter, None for records whose whole line
    `unusual` makes; `in_ns`: whether times are nanoseconds, which are shown as seconds and microseconds.
    """
    common, fronts, shows = _COMMON.unpack_from, Memo(front), Memo(show_of)

    def line(record: Record) -> str:
        stamp, slot, _, data = record
        kind, tid = common(data)
        show = shows[kind]
        if show is None:
            return unusual(record)
        if not in_ns:
            return f"{fronts[tid, slot]}{stamp:12}: {show(data)}"
        micro = (stamp + 500) // 1000
        return f"{fronts[tid, slot]}{micro // _SECOND:5}.{micro % _SECOND:06}: {show(data)}"

    return line
