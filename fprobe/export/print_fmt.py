"""Formatters of records according to the `print fmt` of their event, as the kernel's printf does.

Supports what the formats of this project and of simple kernel events use: integers, texts, array elements and symbols.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from fprobe.export.formats import EventFormat
from ftrace.ring_buffer.formatters import Memo, Number, Piece, Show, compiled
from sandbox.process.printable import escaped, quoted

_LITERAL = re.compile(r'"((?:\\.|[^"\\])*)"', re.DOTALL)
_CONVERSION = re.compile(
    r"%(?P<flags>[-+ #0]*)(?P<width>\d{0,4})(?:\.\d+)?(?:hh|h|ll|l|L|q|z)?(?P<kind>p[sSfF]?|[diuxXcs%])"
)
_ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\", "'": "'"}
_FIELD = re.compile(r"(?:REC->|__get_(?:str|dynamic_array)\()(\w+)(?:\[(\d{1,6})\])?")
_FAULT = "(fault)"
_ADDRESS_FIELDS = ("__probe_ip", "__probe_func", "__probe_ret_ip")
_PLACES = re.compile(r"^\(%lx(?: <- %lx)?\) ?")
_NEXT = re.compile(r"""^(["'}]?) (\w+=(?:0x|["'{])?)$""")
_NAMED = re.compile(r"""(?:^| )\w+=(?=(?:0x|["'{])?$)""")
"""What probe events have between two values, and before one."""
_SIZES = (1, 2, 4, 8)


class Argument(NamedTuple):
    """An argument of the format: a field of the record, or an element of an array field."""

    field: str
    element: int | None = None


class Addresses(NamedTuple):
    """The texts of addresses: symbol and offset, and a symbol alone."""

    with_offset: Memo[int, str]
    name: Memo[int, str]


def printed(event: EventFormat, addresses: Addresses) -> Show:
    """The formatter of an event's records, as in the file `trace`, but for texts: they are escaped."""
    names = {field.name for field in event.fields}
    places = [field for field in _ADDRESS_FIELDS if field in names]
    shown = _argument_pieces(event, addresses)
    if not places:
        return compiled([f"{event.name}: ", *shown])
    first, *last = (address_of(event, field, addresses.name) for field in places)
    where: list[Piece] = [last[0]._replace(texts=addresses.with_offset), " <- ", first] if last else []
    where = where or [first._replace(texts=addresses.with_offset)]
    return compiled([f"{event.name}: (", *where, ") " if shown else ")", *shown])


def arguments(event: EventFormat, addresses: Addresses) -> Show:
    """The formatter of records without the addresses of the probe: `count=512 name="x"`."""
    return compiled(_argument_pieces(event, addresses))


def parameters(event: EventFormat, addresses: Addresses) -> Show:
    """The same as in a call: `count=512, name="x"`."""
    pieces = _argument_pieces(event, addresses)
    return compiled([_NEXT.sub(r"\1, \2", each) if isinstance(each, str) else each for each in pieces])


def result(event: EventFormat, addresses: Addresses) -> Show:
    """The same of a return: the value alone, if it is the only one."""
    pieces = _argument_pieces(event, addresses)
    names = [each for each in pieces if isinstance(each, str) and _NAMED.search(each)]
    if len(names) != 1:
        return parameters(event, addresses)
    return compiled([_NAMED.sub("", each) if each is names[0] else each for each in pieces])


def address_of(event: EventFormat, name: str, texts: Memo[int, str]) -> Number:
    """The field of this name, as an address. Raises ValueError if there is none."""
    field = next((field for field in event.fields if field.name == name), None)
    if field is None or not field.is_number:
        raise ValueError(f"the event {event.group}:{event.name} has no address {name}")
    return Number(field.offset, field.size, field.signed, "%s", texts)


def _argument_pieces(event: EventFormat, addresses: Addresses) -> list[Piece]:
    """The pieces of a record's text. Quotes around a text are part of it: `(fault)` has none."""
    has_places = any(field.name in _ADDRESS_FIELDS for field in event.fields)
    parts, made = _parsed(event.print_fmt, has_places), list[Piece]()
    for index, part in enumerate(parts):
        before, after = parts[index - 1] if index else "", parts[index + 1] if index + 1 < len(parts) else ""
        opens = isinstance(before, str) and before.endswith('"')
        closes = opens and isinstance(after, str) and after.startswith('"')
        if isinstance(part, str):
            made.append(part)
            continue
        number = _number(event, *part, addresses)
        if number is None and closes:
            made[-1] = str(made[-1])[:-1]
            parts[index + 1] = str(after)[1:]
        made.append(number or _text(_reader(event, part[1]), part[0], addresses, opens, closes))
    return made


Conversion = tuple["re.Match[str]", "Argument | None"]


def _parsed(print_fmt: str, has_places: bool) -> list[str | Conversion]:
    """Plain texts, and conversions with their arguments. `has_places`: leave out the addresses before the arguments."""
    literal = _LITERAL.match(print_fmt)
    if literal is None:
        return [print_fmt]
    form = re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), literal[1])
    arguments = [_argument(text) for text in _split(print_fmt[literal.end() :])]
    if has_places and (place := _PLACES.match(form)):
        form, arguments = form[place.end() :], arguments[place[0].count("%") :]
    return list(_pieces(form, arguments))


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


def _number(
    event: EventFormat, conversion: re.Match[str], argument: Argument | None, addresses: Addresses
) -> Number | None:
    """The piece of a plain number; None if it is anything else, or is padded."""
    field = next((field for field in event.fields if argument and field.name == argument.field), None)
    kind, start = conversion["kind"], 0
    if field is None or argument is None or int(conversion["width"] or 0):
        return None
    if argument.element is not None and field.is_array_of_numbers and argument.element < field.count:
        start = argument.element * field.element
    elif not field.is_number:
        return None
    number = Number(field.offset + start, field.element, field.signed)
    if field.element not in _SIZES or kind in ("s", "c") or (field.signed and kind in ("x", "X")):
        return None
    if kind.startswith("p"):
        texts = addresses.with_offset if kind in ("pS", "pF") else addresses.name
        return number._replace(conversion="%s", texts=texts)
    return number._replace(conversion=f"%{kind}" if kind in ("x", "X") else "%d")


def _reader(event: EventFormat, argument: Argument | None) -> Callable[[bytes], Any]:
    """The function from a record to the value of an argument; None if there is none."""
    field = next((field for field in event.fields if argument and field.name == argument.field), None)
    if field is None or argument is None:
        return lambda _data: None
    element = argument.element
    if element is None:
        return field.value

    def read(data: bytes) -> Any:
        found = field.value(data)
        if not isinstance(found, list):
            return found
        return found[element] if element < len(found) else None

    return read


def _text(
    read: Callable[[bytes], Any], conversion: re.Match[str], addresses: Addresses, opens: bool, closes: bool
) -> Show:
    """The formatter of a value. `opens`: a quote is before it; `closes`: the quotes around it are left to this formatter."""

    def show(data: bytes) -> str:
        value = read(data)
        if isinstance(value, str):
            value = quoted(value)[1:-1] if opens else escaped(value)
        shown = _converted(conversion, value, addresses)
        return f'"{shown}"' if closes and shown != _FAULT else shown

    return show


def _converted(conversion: re.Match[str], value: Any, addresses: Addresses) -> str:
    kind, width = conversion["kind"], int(conversion["width"] or 0)
    if value is None:
        return _FAULT if kind == "s" else "?"
    if isinstance(value, str):
        return value
    if not isinstance(value, int):
        return str(value)
    if kind.startswith("p"):
        return (addresses.with_offset if kind in ("pS", "pF") else addresses.name)[value]
    if kind == "c":
        return escaped(chr(value & 0xFF).encode("latin-1").decode("utf-8", "surrogateescape"))
    digits = f"{value & ((1 << 64) - 1):{kind}}" if kind in "xX" else str(value)
    return digits.rjust(width, "0" if "0" in conversion["flags"] else " ")
