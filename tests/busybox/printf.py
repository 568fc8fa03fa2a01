"""The text of printf and of `echo -e`, as busybox makes it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ftrace.core.kstrtox import simple_strtoul

_ESCAPES = {"a": 7, "b": 8, "e": 27, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11, "\\": 92}
_ESCAPE = re.compile(rb"\\(?:x(?P<hex>[0-9a-fA-F]{1,2})|(?P<octal>[0-7]{1,3})|(?P<letter>.))", re.DOTALL)
_ESCAPE_0 = re.compile(rb"\\(?:x(?P<hex>[0-9a-fA-F]{1,2})|0?(?P<octal>[0-7]{1,3})|(?P<letter>.))", re.DOTALL)
_CONVERSION = re.compile(
    rb"%(?P<flags>[-+ 0#]*)(?P<width>\*|\d*)(?:\.(?P<precision>\*|\d*))?[hlL]*(?P<kind>.|$)", re.DOTALL
)
_BITS = 64


class _StopError(Exception):
    r"""`\c`: nothing follows."""

    def __init__(self, text: bytes) -> None:
        super().__init__()
        self.text = text


def unescaped(text: bytes, *, may_have_zero: bool = False) -> tuple[bytes, bool]:
    r"""The text without its escapes, and whether `\c` ends it. `may_have_zero`: before three octal digits, as of `%b`."""
    made, at = b"", 0
    for found in (_ESCAPE_0 if may_have_zero else _ESCAPE).finditer(text):
        made += text[at : found.start()]
        if found["letter"] == b"c":
            return made, True
        made += _character(found)
        at = found.end()
    return made + text[at:], False


def _character(found: re.Match[bytes]) -> bytes:
    if found["hex"]:
        return bytes([int(found["hex"], 16)])
    if found["octal"] is not None:
        return bytes([int(found["octal"] or b"0", 8) & 0xFF])
    letter = found["letter"].decode("latin-1")
    return bytes([_ESCAPES[letter]]) if letter in _ESCAPES else found[0]


class Printf:
    """Formats arguments. `errors`: messages about arguments that are no numbers, without the name of the program."""

    def __init__(self, form: bytes, arguments: list[bytes]) -> None:
        self._form, self._arguments = form, arguments
        self.errors: list[str] = []

    def text(self) -> bytes:
        """The text; the format is used again until no arguments are left."""
        made, left = b"", iter(self._arguments)
        self._left = len(self._arguments)
        while True:
            before = self._left
            try:
                made += self._once(left)
            except _StopError as stop:
                return made + stop.text
            if not self._left or self._left == before:
                return made

    def _next(self, left: Iterator[bytes]) -> bytes:
        self._left = max(self._left - 1, 0)
        return next(left, b"")

    def _once(self, left: Iterator[bytes]) -> bytes:
        made, at = b"", 0
        for found in _CONVERSION.finditer(self._form):
            made += self._plain(self._form[at : found.start()], made)
            at = found.end()
            if found["kind"] == b"%":
                made += b"%"
                continue
            try:
                made += self._converted(found, left)
            except _StopError as stop:
                raise _StopError(made + stop.text) from None
        return made + self._plain(self._form[at:], made)

    def _plain(self, text: bytes, before: bytes) -> bytes:
        made, is_last = unescaped(text)
        if is_last:
            raise _StopError(before + made)
        return made

    def _converted(self, found: re.Match[bytes], left: Iterator[bytes]) -> bytes:
        """One argument, as its conversion says."""
        flags = found["flags"].decode()
        width = self._number(self._next(left)) if found["width"] == b"*" else int(found["width"] or b"0")
        given = found["precision"]
        precision = None if given is None else self._number(self._next(left)) if given == b"*" else int(given or b"0")
        if width < 0:
            flags, width = f"{flags}-", -width
        kind, argument = found["kind"].decode("latin-1"), self._next(left)
        if kind and kind in "sbc":
            return self._padded(self._characters(kind, argument, precision), flags, width)
        if not kind or kind not in "diouxXeEfFgG":
            self.errors.append(f"{found[0].decode('latin-1')}: invalid format")
            raise _StopError(b"")
        how = f"%{flags}{width or ''}" + ("" if precision is None else f".{precision}")
        return (how + ("d" if kind in "iu" else kind)).__mod__(self._value(kind, argument)).encode()

    def _characters(self, kind: str, argument: bytes, precision: int | None) -> bytes:
        if kind == "c":
            return argument[:1]
        if kind == "b":
            argument, is_last = unescaped(argument, may_have_zero=True)
            if is_last:
                raise _StopError(argument)
        return argument if precision is None else argument[:precision]

    @staticmethod
    def _padded(text: bytes, flags: str, width: int) -> bytes:
        return text.ljust(width) if "-" in flags else text.rjust(width)

    def _value(self, kind: str, argument: bytes) -> float | int:
        if kind in "eEfFgG":
            try:
                return float(argument or b"0")
            except ValueError:
                self._refuse(argument)
                return 0.0
        number = self._number(argument)
        return number if kind in "di" else number % (1 << _BITS)

    def _number(self, argument: bytes) -> int:
        text = argument.decode("utf-8", "surrogateescape").strip()
        if text[:1] in ("'", '"'):
            return ord(text[1:2] or "\0")
        digits = text.lstrip("+-")
        value, rest = simple_strtoul(digits) if digits[:1].isdigit() else (0, digits)
        if text and (rest or not digits[:1].isdigit()):
            self._refuse(argument)
        return -value if text.startswith("-") else value

    def _refuse(self, argument: bytes) -> None:
        self.errors.append(f"invalid number '{argument.decode('utf-8', 'surrogateescape')}'")
