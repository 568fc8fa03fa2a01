"""Numba's symbols and the names that users gave: `_ZN4mine5sumsqB2v1...Ed` is `mine.sumsq`.

Numba mangles a function's module and qualified name, each part with its length, then tags, then the types of arguments.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_START = re.compile(r"_Z(?P<nested>N?)")
_LENGTH = re.compile(r"\d+")
_ESCAPES = re.compile(r"_3c(\w*?)_3e|((?:_[89a-f][0-9a-f])+)")
_CARRIER = re.compile(r"(?:\.kernel\.\d+___g?ufunc__|(?P<role>__g?ufunc__))\.(?=_Z)")
_CPYTHON, _CFUNC, _ENVIRONMENT = "_ZN7cpython", "cfunc.", "_ZN08NumbaEnv"
"""What the symbols of wrappers for Python and for C, and of environments, begin with before the wrapped function's."""
_NOT_THE_USERS = ("cpython", "NumbaEnv")
"""The first parts of the names of wrappers and environments."""


class UserName(NamedTuple):
    """The Python function that a symbol belongs to, by module and qualified name, and the symbol's role in it.

    `role`: '' for the function itself; `__ufunc__` and `__gufunc__` for the loops that NumPy calls, into which its body is
    inlined, and `kernel` for what threads call; `next` for a generator's.
    """

    function: str
    role: str = ""

    def __str__(self) -> str:
        return f"{self.function}.{self.role}" if self.role else self.function


def user_name(symbol: str) -> UserName | None:
    """The Python function that `symbol` belongs to; None for Numba's own code (wrappers, its runtime) and for other symbols."""
    carrier = _CARRIER.match(symbol)
    if carrier:
        inner = user_name(symbol[carrier.end() :])
        return inner and UserName(inner.function, carrier["role"] or "kernel")
    parts, rest = nested_name(symbol)
    if not parts or parts[0] in _NOT_THE_USERS:
        return None
    if parts[-1] == "next" and rest.startswith("E"):  # only a generator's has no tags
        return UserName(".".join(parts[:-1]), "next")
    return UserName(".".join(parts))


def wrapped_symbol(symbol: str) -> tuple[str, str]:
    """The symbol of the function that a wrapper is for, and the wrapper's role; empty texts if `symbol` is no wrapper's."""
    if symbol.startswith(_CPYTHON):
        return f"_ZN{symbol.removeprefix(_CPYTHON)}", "cpython"
    return (symbol.removeprefix(_CFUNC), "cfunc") if symbol.startswith(_CFUNC) else ("", "")


def with_environment(symbol: str) -> str:
    """The symbol of the function whose environment `symbol` is; '' if it is none. It stays where a function was inlined."""
    return f"_ZN{symbol.removeprefix(_ENVIRONMENT)}" if symbol.startswith(_ENVIRONMENT) else ""


def nested_name(symbol: str) -> tuple[list[str], str]:
    """The parts of a mangled name (module, packages, classes, function) and what follows them; no parts if it is not mangled."""
    start = _START.match(symbol)
    parts: list[str] = []
    at = start.end() if start else 0
    while start and (match := _LENGTH.match(symbol, at)):
        at = match.end() + int(match[0])
        parts.append(_decoded(symbol[match.end() : at]))
        if not start["nested"]:
            break
    return parts, symbol[at:]


def _decoded(part: str) -> str:
    """Without the escapes of what cannot be in a name of C: `_3clocals_3e` is `<locals>`, and `_c3_a9` is `é`."""

    def plain(match: re.Match[str]) -> str:
        if match[2] is None:
            return f"<{match[1]}>"
        try:
            return bytes.fromhex(match[2].replace("_", "")).decode()
        except UnicodeDecodeError:
            return match[2]

    return _ESCAPES.sub(plain, part)


_TYPES = {
    "v": "none", "b": "bool", "h": "uint8", "a": "int8", "t": "uint16", "s": "int16", "j": "uint32", "i": "int32",
    "y": "uint64", "x": "int64", "Dh": "float16", "f": "float32", "d": "float64",
}  # fmt: skip


def argument_types(symbol: str) -> str:
    """The types of the arguments of the specialisation that `symbol` is, as Numba writes them; '' if they cannot be read.

    `float64, array(int64, 1d, C)`.
    """
    carrier = _CARRIER.match(symbol)
    parts, rest = nested_name(symbol[carrier.end() :] if carrier else symbol)
    try:
        found = _Types(rest).after_name() if parts else []
    except (IndexError, ValueError):  # another version of Numba may write them differently
        return ""
    return ", ".join(found)


class _Types:
    """A reader of mangled types. Raises ValueError or IndexError for what is none."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def after_name(self) -> list[str]:
        """The types after a function's name, its tags and its end."""
        self._tags()
        if self._peek("E"):
            self._at += 1
        self._tags()
        found = []
        while self._at < len(self._text):
            found.append(self._type())
        return found

    def _tags(self) -> None:
        while self._peek("B"):
            self._at += 1
            self._identifier()

    def _peek(self, letter: str) -> bool:
        return self._text.startswith(letter, self._at)

    def _type(self) -> str:
        if self._text[self._at].isdigit():
            return self._templated(self._identifier())
        if self._peek("Li"):
            end = self._text.index("E", self._at)
            start, self._at = self._at + 2, end + 1
            return self._text[start:end]
        if self._peek("N"):
            self._at += 1
            names = []
            while self._text[self._at].isdigit():
                names.append(self._identifier())
            found = self._templated(".".join(names))
            self._expect("E")
            return found
        code = self._text[self._at : self._at + 2] if self._peek("D") else self._text[self._at]
        self._at += len(code)
        if code not in _TYPES:
            raise ValueError(f"{code!r} is not a type")
        return _TYPES[code]

    def _identifier(self) -> str:
        match = _LENGTH.match(self._text, self._at)
        if match is None:
            raise ValueError(f"no length at {self._at} in {self._text!r}")
        self._at = match.end() + int(match[0])
        return _escaped(self._text[match.end() : self._at])

    def _templated(self, name: str) -> str:
        if not self._peek("I"):
            return name
        self._at += 1
        inner = []
        while not self._peek("E"):
            inner.append(self._type())
        self._at += 1
        if name == "Array" and len(inner) > 2:
            return f"array({inner[0]}, {inner[1]}d, {', '.join(inner[2:]).removesuffix(', mutable, aligned')})"
        return f"{name}({', '.join(inner)})"

    def _expect(self, letter: str) -> None:
        if not self._peek(letter):
            raise ValueError(f"no {letter} at {self._at} in {self._text!r}")
        self._at += 1


def _escaped(text: str) -> str:
    """Numba writes what cannot be in a name as `_` and two hexadecimal digits, and `_` before a digit at the beginning."""
    plain = re.sub(r"_([0-9a-f]{2})", lambda match: chr(int(match[1], 16)), text)
    return plain[1:] if plain[:1] == "_" and plain[1:2].isdigit() else plain
