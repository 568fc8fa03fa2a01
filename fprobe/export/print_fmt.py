"""Formats a record according to the `print fmt` of its event, as the kernel's printf does.

Supports what the formats of this project and of simple kernel events use: integers, texts, array elements and symbols.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

from fprobe.export.formats import EventFormat
from sandbox.process.printable import escaped, quoted

Name = Callable[[int], str]
"""name(address): the text for an address."""

_LITERAL = re.compile(r'"((?:\\.|[^"\\])*)"', re.DOTALL)
_CONVERSION = re.compile(
    r"%(?P<flags>[-+ #0]*)(?P<width>\d{0,4})(?:\.\d+)?(?:hh|h|ll|l|L|q|z)?(?P<kind>p[sSfF]?|[diuxXcs%])"
)
_ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\", "'": "'"}
_FIELD = re.compile(r"(?:REC->|__get_(?:str|dynamic_array)\()(\w+)(?:\[(\d{1,6})\])?")
_FAULT = "(fault)"
_ADDRESS_FIELDS = ("__probe_ip", "__probe_func", "__probe_ret_ip")
_PLACES = re.compile(r"^\(%lx(?: <- %lx)?\) ?")


class Argument(NamedTuple):
    """An argument of the format: a field of the record, or an element of an array field."""

    field: str
    element: int | None = None

    def value(self, values: dict[str, Any]) -> Any:
        """The argument's value, from the values of a record; None if there is none."""
        found = values.get(self.field)
        if self.element is None or not isinstance(found, list):
            return found
        return found[self.element] if self.element < len(found) else None


class Printf(NamedTuple):
    """A parsed `print fmt`. `pieces`: plain texts, and conversions, each with its argument."""

    pieces: tuple[str | tuple[re.Match[str], Argument | None], ...]

    def text(self, values: dict[str, Any], with_offset: Name, name: Name) -> str:
        """The text for the values of a record."""
        shown = ""
        for piece in self.pieces:
            if isinstance(piece, str):
                closes = shown.endswith(f'"{_FAULT}') and piece.startswith('"')
                shown = shown[: -len(_FAULT) - 1] + _FAULT + piece[1:] if closes else shown + piece
            else:
                value = piece[1].value(values) if piece[1] else None
                if isinstance(value, str):
                    value = quoted(value)[1:-1] if shown.endswith('"') else escaped(value)
                shown += _converted(piece[0], value, with_offset, name)
        return shown


def printed(event: EventFormat, data: bytes, with_offset: Name, name: Name) -> str:
    """The text of a record after the event's name, as in the file `trace`, but for texts: they are escaped.

    `with_offset`, `name`: functions that format an address as symbol and offset, and as a symbol alone.
    """
    names = {field.name for field in event.fields}
    places = [event.address(field, data) for field in _ADDRESS_FIELDS if field in names]
    shown = arguments(event, data, with_offset, name)
    if not places:
        return shown
    where = f"{with_offset(places[1])} <- {name(places[0])}" if len(places) > 1 else with_offset(places[0])
    return f"({where})" + (f" {shown}" if shown else "")


def arguments(event: EventFormat, data: bytes, with_offset: Name, name: Name) -> str:
    """The text of a record without the addresses of the probe: `count=512 name="x"`."""
    has_places = any(field.name in _ADDRESS_FIELDS for field in event.fields)
    return _parsed(event.print_fmt, has_places).text(event.values(data), with_offset, name)


@cache
def _parsed(print_fmt: str, has_places: bool) -> Printf:
    """Parse a `print fmt`. `has_places`: leave out the addresses before the arguments."""
    literal = _LITERAL.match(print_fmt)
    if literal is None:
        return Printf((print_fmt,))
    form = re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), literal[1])
    arguments = [_argument(text) for text in _split(print_fmt[literal.end() :])]
    if has_places and (place := _PLACES.match(form)):
        form, arguments = form[place.end() :], arguments[place[0].count("%") :]
    return Printf(tuple(_pieces(form, arguments)))


def _pieces(form: str, arguments: list[Argument | None]) -> Iterator[str | tuple[re.Match[str], Argument | None]]:
    left, at = iter(arguments), 0
    for found in _CONVERSION.finditer(form):
        if found.start() > at:
            yield form[at : found.start()]
        at = found.end()
        if found["kind"] == "%":
            yield "%"
        else:
            yield found, next(left, None)
    if at < len(form):
        yield form[at:]


def _split(text: str) -> Iterator[str]:
    """Split arguments at commas outside brackets."""
    depth, start = 0, 0
    for at, letter in enumerate(text + ","):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            if text[start:at].strip():
                yield text[start:at].strip()
            start = at + 1


def _argument(text: str) -> Argument | None:
    """The field that an argument refers to; None if it refers to none. Casts and sign computations are ignored."""
    found = _FIELD.search(text)
    return Argument(found[1], int(found[2]) if found[2] else None) if found else None


def _converted(conversion: re.Match[str], value: Any, with_offset: Name, name: Name) -> str:
    kind, width = conversion["kind"], int(conversion["width"] or 0)
    if value is None:
        return _FAULT if kind == "s" else "?"
    if isinstance(value, str):
        return value
    if not isinstance(value, int):
        return str(value)
    if kind.startswith("p"):
        return (with_offset if kind in ("pS", "pF") else name)(value)
    if kind == "c":
        return escaped(chr(value & 0xFF).encode("latin-1").decode("utf-8", "surrogateescape"))
    digits = f"{value & ((1 << 64) - 1):{kind}}" if kind in "xX" else str(value)
    return digits.rjust(width, "0" if "0" in conversion["flags"] else " ")
