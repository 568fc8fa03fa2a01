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
