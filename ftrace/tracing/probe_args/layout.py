"""The record of a probe event: its fields' offsets, the texts of `format` and `print fmt`, and its text in `trace`.

Handlers are generated from `record_layout`, which has each field's offset and fetch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ftrace.tracing.probe_args.fetch import Argument
from ftrace.tracing.probe_args.types import FetchType

COMMON_FIELDS = (
    ("unsigned short", "common_type", 0, 2, False),
    ("unsigned char", "common_flags", 2, 1, False),
    ("unsigned char", "common_preempt_count", 3, 1, False),
    ("int", "common_pid", 4, 4, True),
)
"""The common fields at the start of every record: type, name, offset, size, signedness."""
COMMON_SIZE = 8
ENTRY_FIELDS = ("__probe_ip",)
"""The address fields before the arguments, for a probe on an instruction or a function's entry."""
RETURN_FIELDS = ("__probe_func", "__probe_ret_ip")
"""The address fields before the arguments, for a return probe."""
_ADDRESS_SIZE = 8


@dataclass(frozen=True)
class Field:
    """A field of a record: its type as in `format`, and its offset and size in bytes."""

    type: str
    name: str
    offset: int
    size: int
    signed: bool

    def line(self) -> str:
        """The line in the `format` file. An array's brackets follow its name."""
        kind, name = self.type, self.name
        if "[" in kind and not kind.startswith("__data_loc"):
            kind, name = kind.partition("[")[0], f"{name}[]"
        return f"\tfield:{kind} {name};\toffset:{self.offset};\tsize:{self.size};\tsigned:{int(self.signed)};"


@dataclass(frozen=True)
class ArgumentField(Field):
    """The field of an argument, with its fetch."""

    argument: Argument


@dataclass(frozen=True)
class RecordLayout:
    """The fields of a record after the common ones: addresses, then arguments, packed without gaps.

    `size`: bytes of the fixed part. The text of strings follows it, in the arguments' order.
    """

    addresses: tuple[Field, ...]
    arguments: tuple[ArgumentField, ...]
    size: int

    @property
    def fields(self) -> tuple[Field, ...]:
        """All fields, in order."""
        return (*self.addresses, *self.arguments)


def record_layout(arguments: Iterable[Argument], is_return: bool) -> RecordLayout:
    """The layout of an event with these arguments."""
    offset = COMMON_SIZE
    addresses = []
    for name in RETURN_FIELDS if is_return else ENTRY_FIELDS:
        addresses.append(Field("unsigned long", name, offset, _ADDRESS_SIZE, False))
        offset += _ADDRESS_SIZE
    fields = []
    for argument in arguments:
        kind = argument.type.field + (f"[{argument.count}]" if argument.count else "")
        fields.append(ArgumentField(kind, argument.name, offset, argument.size, argument.type.signed, argument))
        offset += argument.size
    return RecordLayout(tuple(addresses), tuple(fields), offset)


def format_text(name: str, number: int, fields: Sequence[Field], print_fmt: str) -> str:
    """The `format` file of an event, as f_show() in kernel/trace/trace_events.c writes it."""
    common = [Field(*values).line() for values in COMMON_FIELDS]
    lines = [f"name: {name}", f"ID: {number}", "format:", *common, "", *(field.line() for field in fields)]
    return "\n".join((*lines, "", f"print fmt: {print_fmt}", ""))


def print_fmt(layout: RecordLayout) -> str:
    """The format string and the arguments for printing a record."""
    formats = " ".join(["(" + " <- ".join("%lx" for _ in layout.addresses) + ")", *map(_conversion, layout.arguments)])
    values = [f"REC->{field.name}" for field in layout.addresses]
    for field in layout.arguments:
        values += _values(field.argument)
    return f'"{formats}", {", ".join(values)}'


def _conversion(field: ArgumentField) -> str:
    argument = field.argument
    one = argument.type.printf
    return f"{argument.name}=" + (f"{{{','.join([one] * argument.count)}}}" if argument.count else one)


def _values(argument: Argument) -> list[str]:
    names = [f"{argument.name}[{index}]" for index in range(argument.count)] or [argument.name]
    return [f"__get_str({name})" if argument.type.is_string else f"REC->{name}" for name in names]


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
