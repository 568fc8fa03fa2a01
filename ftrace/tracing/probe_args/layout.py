"""The record of a probe event: its fields' offsets, the texts of `format` and `print fmt`, and its text in `trace`.

Handlers are generated from `record_layout`, which has each field's offset and fetch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from ftrace.ring_buffer.formatters import Memo, Number, Piece
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
_WORD_SIZE = 4


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


def record_pieces(
    layout: RecordLayout, places: Memo[int, str], names: Memo[int, str], symbols: Memo[int, str] | None = None
) -> list[Piece]:
    """The pieces of a record's text: `(SYMBOL+OFFSET/SIZE) ARGUMENTS`; for a return, `(CALLER <- FUNCTION)`.

    `places`: addresses with offsets; `names`: functions without; `symbols`: arguments that are symbols, by default as `places`.
    """
    first, *last = (Number(at.offset, at.size, False, "%s", places) for at in layout.addresses)
    where: list[Piece] = [last[0], " <- ", first._replace(texts=names)] if last else [first]
    symbols = places if symbols is None else symbols
    arguments = (piece for field in layout.arguments for piece in argument_pieces(field, symbols))
    return ["(", *where, ")", *arguments]


def argument_pieces(field: ArgumentField, symbols: Memo[int, str]) -> Iterator[Piece]:
    """The pieces of the text ` NAME=VALUE` of an argument."""
    argument = field.argument
    starts = range(field.offset, field.offset + field.size, argument.type.size)
    yield f" {argument.name}=" + ("{" if argument.count else "")
    for start in starts if argument.count else starts[:1]:
        yield from ([","] if start > field.offset else [])
        yield from _value_pieces(argument.type, start, symbols)
    yield "}" if argument.count else ""


def _value_pieces(kind: FetchType, start: int, symbols: Memo[int, str]) -> list[Piece]:
    if kind.is_string:
        return [partial(_string_text, start)]
    number = Number(start, kind.size, kind.name.startswith("s") and kind.signed)
    if kind.name == "char":
        return ["'", number._replace(conversion="%s", texts=_LETTERS), "'"]
    if kind.name == "symbol":
        return [number._replace(conversion="%s", texts=symbols)]
    return [number._replace(conversion="%#x") if kind.name.startswith("x") else number]


def _string_text(start: int, record: bytes) -> str:
    """The word at `start` has the text's length with the NUL in the upper half, and its offset in the lower half."""
    word = int.from_bytes(record[start : start + _WORD_SIZE], "little")
    length, offset = word >> 16, word & 0xFFFF
    if not length:
        return "(fault)"
    text = record[offset : offset + length].partition(b"\0")[0]
    return f'"{_characters(text)}"'


def _characters(data: bytes) -> str:
    """Decode bytes for tracefs files; invalid UTF-8 is kept."""
    return data.decode("utf-8", "surrogateescape")


_LETTERS: Memo[int, str] = Memo(lambda number: _characters(bytes([number])))
