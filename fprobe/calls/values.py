"""Text of a program's values, in the syntax of its source."""

from __future__ import annotations

import re
from typing import Any

from sandbox.abi.signatures import Array, Complex, Floating, Integer, Pointer, Record, Type
from sandbox.process.printable import escaped

UNREADABLE = "?"
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
