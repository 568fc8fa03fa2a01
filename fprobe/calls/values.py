"""Text of a program's values, in the syntax of its source, and of the strings that its pointers lead to."""

from __future__ import annotations

import codecs
import re
from typing import Any, NamedTuple

from sandbox.abi.signatures import Array, Complex, Floating, Integer, Pointer, Record, Type
from sandbox.process.printable import escaped, quoted

UNREADABLE = "?"
FAULT = "<fault>"
_PRINTABLE = bytes(range(0x20, 0x7F)) + b"\t\n\r"
_NAMELESS = re.compile(r"(?:_\d+)?")
"""Names of fields that have none in the source: a struct in LLVM IR, a base class, an anonymous union."""


def value_text(value: Any, kind: Type) -> str:
    """A value that is not a pointer to follow."""
    if isinstance(kind, Pointer):
        return f"{value:#x}" if value else "NULL"
    if isinstance(kind, Record):
        fields = zip(kind.fields, value, strict=True)
        return "{" + ", ".join(_field(name, item, field) for (name, field), item in fields) + "}"
    if isinstance(kind, Complex):
        real, imaginary = (value_text(item, kind.element) for item in value)
        return f"{real}{'' if imaginary.startswith('-') else '+'}{imaginary}i"
    if isinstance(kind, Array):
        return "[" + ", ".join(value_text(item, kind.element) for item in value) + "]"
    if isinstance(kind, Integer) and kind.bits == 1:
        return str(bool(value)).lower()
    if isinstance(kind, Integer) and kind.name == "char" and 0x20 <= value < 0x7F:
        return "'" + escaped(chr(value)).replace("'", "\\'") + "'"
    return f"{value:g}" if isinstance(kind, Floating) else str(value)


def _field(name: str, value: Any, kind: Type) -> str:
    return value_text(value, kind) if _NAMELESS.fullmatch(name) else f"{name}={value_text(value, kind)}"


class String(NamedTuple):
    """A string of the program. Bytes that are not UTF-8 are surrogates. `is_cut`: whether it goes on."""

    text: str
    is_cut: bool

    def __str__(self) -> str:
        """In double quotes; `...` after them if it is cut."""
        return quoted(self.text) + "..." * self.is_cut


def string_in(data: bytes, *, certain: bool) -> String | None:
    """The C string at the start of `data`; None if there is none.

    Unless it is `certain` that this is a string, it must look like one: two or more printable characters and a NUL.
    """
    text, end, _ = data.partition(b"\0")
    if not certain and (not end or len(text) < 2 or text.translate(None, _PRINTABLE)):
        return None
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    return String(decoder.decode(text, final=bool(end)), not end)  # a character that is cut is left out
