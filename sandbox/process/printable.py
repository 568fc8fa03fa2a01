"""Text that a terminal shows as it is: what programs' bytes would do to it is escaped."""

from __future__ import annotations

import re
from typing import Any

from sandbox.process.writing import as_bytes

_SHORT = {"\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_MARK = "\ud800"
"""What a style begins with instead of an escape: no text of a program has this, whose bytes that are not UTF-8 become others."""
_STYLE = re.compile(rf"{_MARK}(\d+)m")


def escaped(text: str) -> str:
    r"""Text of a program, such that each is shown as another: `\\`, `\n`, `\t`, `\r`, and two hexadecimal digits after `\x` for
    each further byte of what cannot be printed. Bytes that are not UTF-8 are surrogates in `text`, as by surrogateescape.
    """
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(_SHORT.get(letter) or printable(letter) for letter in text)


def quoted(text: str) -> str:
    """Text of a program in double quotes."""
    return '"' + escaped(text).replace('"', '\\"') + '"'


def printable(text: str, keep: str = "") -> str:
    r"""`text` with what cannot be printed escaped, but for the letters of `keep`. A `\` is not doubled."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in keep else _bytes(letter) for letter in text)


def styled(text: str, style: int) -> str:
    """`text` in a style of terminals, such as 1 for bold, once `printable_line` has made it a line of output."""
    return f"{_MARK}{style}m{text}{_MARK}0m"


def printable_line(text: str) -> str:
    """A line of output, printable but for tabs, ends of lines and our styles (`styled`)."""
    if text.isprintable():
        return text
    parts, at = [], 0
    for style in _STYLE.finditer(text):
        parts += [printable(text[at : style.start()], "\n\t"), f"\x1b[{style[1]}m"]
        at = style.end()
    return "".join([*parts, printable(text[at:], "\n\t")])


def utf8(value: Any) -> Any:
    r"""A text, or all in a list or dictionary, for a file that must be UTF-8: a byte that is not is `\x` and two digits."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {name: utf8(each) for name, each in value.items()}
    return [utf8(each) for each in value] if isinstance(value, list) else value


def _bytes(letter: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in as_bytes(letter))
