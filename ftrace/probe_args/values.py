"""The text of recorded values, as the kernel prints them into `trace`."""

from __future__ import annotations

from collections.abc import Callable

from ftrace.probe_args.layout import ArgumentField, RecordLayout
from ftrace.probe_args.types import FetchType

Symbolize = Callable[[int], str]
"""symbolize(address): `symbol+0xoffset/0xsize`, with ` [module]`; the address in hexadecimal if no symbol contains it."""


def record_text(layout: RecordLayout, record: bytes, symbolize: Symbolize, name_of: Symbolize) -> str:
    """The text of a record with common fields: `(SYMBOL+OFFSET/SIZE) ARGUMENTS`; for a return, `(CALLER <- FUNCTION)`.

    `name_of` returns a function's name without an offset.
    """
    first, *last = (int.from_bytes(record[at.offset : at.offset + at.size], "little") for at in layout.addresses)
    where = f"{symbolize(last[0])} <- {name_of(first)}" if last else symbolize(first)
    return f"({where})" + "".join(field_text(field, record, symbolize) for field in layout.arguments)


def field_text(field: ArgumentField, record: bytes, symbolize: Symbolize) -> str:
    """The text ` NAME=VALUE` of an argument. `record` includes the common fields."""
    argument = field.argument
    size = argument.type.size
    starts = range(field.offset, field.offset + field.size, size)
    values = [_value_text(argument.type, record[start : start + size], record, symbolize) for start in starts]
    return f" {argument.name}=" + (f"{{{','.join(values)}}}" if argument.count else values[0])


def _value_text(kind: FetchType, data: bytes, record: bytes, symbolize: Symbolize) -> str:
    if kind.is_string:
        return _string_text(int.from_bytes(data, "little"), record)
    value = int.from_bytes(data, "little", signed=kind.name.startswith("s") and kind.signed)
    if kind.name == "char":
        return f"'{_characters(data)}'"
    if kind.name == "symbol":
        return symbolize(value)
    return f"{value:#x}" if kind.name.startswith("x") else str(value)


def _string_text(word: int, record: bytes) -> str:
    """`word`: the text's length with the NUL in the upper half, and its offset in the record in the lower half."""
    length, offset = word >> 16, word & 0xFFFF
    if not length:
        return "(fault)"
    text = record[offset : offset + length].partition(b"\0")[0]
    return f'"{_characters(text)}"'


def _characters(data: bytes) -> str:
    """Decode bytes for tracefs files; invalid UTF-8 is kept."""
    return data.decode("utf-8", "surrogateescape")
