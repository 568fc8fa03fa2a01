"""Text of the traced program's pointers, with the strings that they lead to."""

from __future__ import annotations

import codecs
from typing import NamedTuple

from sandbox.abi.signatures import Pointer, Type
from sandbox.process.printable import quoted

STRING_LIMIT = 64
"""The maximum number of bytes of a string that are read."""
FAULT = "<fault>"
_PRINTABLE = bytes(range(0x20, 0x7F)) + b"\t\n\r"


def is_character_pointer(kind: Type) -> bool:
    """Whether the source declares it as a pointer to characters."""
    return isinstance(kind, Pointer) and kind.name.replace("const", "").replace(" ", "") == "char*"


def is_untyped_pointer(kind: Type) -> bool:
    """Whether the source does not declare the target: LLVM's `ptr`, `void *`."""
    return isinstance(kind, Pointer) and kind.name.replace("const", "").replace(" ", "") in ("", "ptr", "void*")


class String(NamedTuple):
    """A string of the program. Bytes that are not UTF-8 are surrogates. `is_cut`: whether it goes on."""

    text: str
    is_cut: bool


def string_in(data: bytes | None, *, certain: bool) -> String | None:
    """The C string at the start of `data`; None if there is none.

    Unless it is `certain` that this is a string, it must look like one: two or more printable characters and a NUL.
    """
    if data is None:
        return None
    text, end, _ = data.partition(b"\0")
    if not certain and (not end or len(text) < 2 or text.translate(None, _PRINTABLE)):
        return None
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    return String(decoder.decode(text, final=bool(end)), not end)  # a character that is cut is left out


def pointer_text(address: int, kind: Type, target: bytes | None) -> str:
    """A pointer, with the string that it points to, if it does."""
    if not address:
        return "NULL"
    if is_character_pointer(kind):
        found = string_in(target, certain=True)
        return string_text(found) if found is not None else f"{address:#x} {FAULT}"
    found = string_in(target, certain=False)
    return f"{address:#x} {string_text(found)}" if found is not None else f"{address:#x}"


def string_text(string: String) -> str:
    """A string in double quotes; `...` after them if it is cut."""
    return quoted(string.text) + "..." * string.is_cut
