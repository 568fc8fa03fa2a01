"""Arguments of a printf as bytes, and the text that they give: vbin_printf() and bstr_printf() of lib/vsprintf.c.

A number has the size that its directive says, and is aligned to that, but to 4 if it is 8; a text is there with its NUL. A width
or a precision `*` is an `int` before its directive's value. `%s`, `%c`, `%p` and the integers are known, with the kernel's `%ps`
and `%pS` (the symbol of an address) and `%px`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

_DIRECTIVE = re.compile(
    r"%(?P<flags>[-+ #0]*)(?P<width>\*|\d*)(?:\.(?P<precision>\*|\d*))?(?P<size>[hlLzt]*)"
    r"(?P<letter>p[A-Za-z0-9]*|[diouxXcs%])",
    re.ASCII,
)
_INT, _POINTER, _ALIGN = 4, 8, 4
_SIGNED = "di"
_SYMBOLS = ("ps", "pS", "pB")
_ENCODING = ("utf-8", "surrogateescape")


class Directive(NamedTuple):
    """A directive of a format. `stars`: how many of width and precision are arguments."""

    flags: str
    width: str
    precision: str | None
    size: int
    letter: str

    @property
    def stars(self) -> int:
        """How many of width and precision are arguments."""
        return (self.width == "*") + (self.precision == "*")


class Format(NamedTuple):
    """A format's plain texts and directives. `rest`: what begins with a directive that is not known."""

    parts: tuple[str | Directive, ...]
    rest: str


@cache
def parsed(form: str) -> Format:
    """Take a format apart."""
    parts, at = list[str | Directive](), 0
    for found in _DIRECTIVE.finditer(form):
        before = form[at : found.start()]
        if "%" in before:
            break
        at = found.end()
        if found["letter"] == "%":
            parts.append(before + "%")
        else:
            parts += [
                before,
                Directive(found["flags"], found["width"], found["precision"], _size(found), found["letter"]),
            ]
    plain, sign, rest = form[at:].partition("%")
    return Format((*parts, plain), sign + rest)


def _size(found: re.Match[str]) -> int:
    """Bytes of the value; 0: it is a text."""
    letter, size = found["letter"][0], found["size"]
    if letter in "cs":
        return int(letter == "c")
    if letter == "p" or any(each in size for each in "lLzt"):
        return _POINTER
    return max(_INT >> size.count("h"), 1)


class _Reader:
    """Takes values from the bytes; zeros and empty texts from where there are no more."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def number(self, size: int, signed: bool) -> int:
        align = min(size, _ALIGN)
        start = -(-self._at // align) * align
        self._at = start + size
        return int.from_bytes(self._data[start : self._at], "little", signed=signed)

    def text(self) -> str:
        text = self._data[self._at :].partition(b"\0")[0]
        self._at += len(text) + 1
        return text.decode(*_ENCODING)


def printed(form: str, data: bytes, symbol: Callable[[int], str]) -> str:
    """The text of a format and the bytes of its arguments. `symbol`: the text of an address."""
    reader, (parts, rest) = _Reader(data), parsed(form)
    return "".join(part if isinstance(part, str) else _shown(part, reader, symbol) for part in parts) + rest


def _shown(directive: Directive, reader: _Reader, symbol: Callable[[int], str]) -> str:
    flags, width, precision = directive.flags, directive.width, directive.precision
    if width == "*":
        given = reader.number(_INT, True)
        flags, width = flags + "-" * (given < 0), str(abs(given))
    if precision == "*":
        given = reader.number(_INT, True)
        precision = None if given < 0 else str(given)
    limit = "" if precision is None else f".{precision or 0}"
    letter = directive.letter
    if letter == "s":
        return f"%{flags}{width}{limit}s" % reader.text()
    value = reader.number(directive.size, letter in _SIGNED)
    if letter == "c":
        return f"%{flags}{width}s" % chr(value)
    if letter[0] == "p":
        shown = symbol(value) if letter in _SYMBOLS else f"{value:x}" if letter == "px" else f"{value:016x}"
        return f"%{flags}{width}s" % shown
    return _integer(value, flags, width, precision, letter)


def _integer(value: int, flags: str, width: str, precision: str | None, letter: str) -> str:
    """A number as C prints it, where Python differs: a precision, signs of unsigned numbers, and `#`."""
    if letter not in _SIGNED:
        flags = flags.replace("+", "").replace(" ", "")
    if "#" in flags and (letter == "o" or not value):
        flags = flags.replace("#", "")
        precision = str(max(int(precision or 0), len(f"{value:o}") + (value != 0))) if letter == "o" else precision
    if precision is None:
        return f"%{flags}{width}{letter}" % value
    sign = "+" if "+" in flags else " " * (" " in flags)
    hash_sign = "#" * ("#" in flags)
    shown = f"%{sign}{hash_sign}.{precision or 0}{letter}" % value if value or int(precision or 0) else sign
    return f"%{'-' * ('-' in flags)}{width}s" % shown


def unknown_text(address: int) -> str:
    """What stands for a text that is not known."""
    return f"(no text at {address:#x})\n"


def packed(form: str, values: tuple[int | str | bytes, ...]) -> bytes:
    """The bytes of a format's arguments. Raises TypeError if their number or a type is wrong, or a directive is unknown."""
    parts, rest = parsed(form)
    directives = [part for part in parts if isinstance(part, Directive)]
    if rest:
        raise TypeError(
            f"{form!r}: {rest[:8]!r} is none of %d %i %u %o %x %X %c %s %p, with h, hh, l, ll, z or t, or %%"
        )
    wanted = sum(1 + directive.stars for directive in directives)
    if wanted != len(values):
        raise TypeError(f"{form!r} takes {wanted} arguments, and {len(values)} were given")
    data, left = bytearray(), iter(values)
    for directive in directives:
        stars = [next(left) for _ in range(directive.stars)]
        for star in stars:
            _put(data, star, _INT, form)
        value, precision = next(left), stars[-1] if directive.precision == "*" else directive.precision
        if directive.size:
            _put(data, value, directive.size, form)
        else:
            data += _text(value, None if precision is None else int(precision or 0), form) + b"\0"
    return bytes(data.ljust(-(-len(data) // _ALIGN) * _ALIGN, b"\0"))


def _text(value: int | str | bytes, precision: int | None, form: str) -> bytes:
    """The bytes of a text that a record has: as many as are printed."""
    if not isinstance(value, (str, bytes)):
        raise TypeError(f"{form!r}: %s takes a str or bytes, not {value!r}")
    text = (value.encode(*_ENCODING) if isinstance(value, str) else value).partition(b"\0")[0]
    return text if precision is None or precision < 0 else text[:precision]


def _put(data: bytearray, value: int | str | bytes, size: int, form: str) -> None:
    if size == 1 and isinstance(value, str) and len(value) == 1:
        value = ord(value) & 0xFF
    if not isinstance(value, int):
        raise TypeError(f"{form!r}: a number takes an int, not {value!r}")
    align = min(size, _ALIGN)
    data += bytes(-len(data) % align)
    data += (value & (1 << size * 8) - 1).to_bytes(size, "little")
