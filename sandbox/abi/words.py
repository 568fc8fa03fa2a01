"""Parsing arguments from text, as on a command line."""

from __future__ import annotations

import ast
from typing import Any

from sandbox.abi.signatures import Array, Floating, Integer, Pointer, Record, Type


def parse_word(word: str, kind: Type, where: str) -> Any:
    """The Python value of `word` as a `kind`.

    Integers are written `10`, `-1`, `0x1f`, `0o17`, `1_000` or `'a'`; a pointer parameter takes an integer (an
    address), or else the word itself is passed as a C string; structs, arrays and vectors are written as Python tuples
    or lists. With any other `kind` the word's form decides. Raises ValueError beginning with `where`.
    """
    if isinstance(kind, Integer):
        return _integer(word, kind, where)
    if isinstance(kind, Floating):
        try:
            return float(word)
        except ValueError:
            raise ValueError(f"{where}: expected a number for {kind}, got {word!r}") from None
    if isinstance(kind, (Record, Array)):
        return _sequence(word, kind, where)
    return _guessed(word, allow_number=not isinstance(kind, Pointer))


def _integer(word: str, kind: Integer, where: str) -> int:
    if len(word) == 3 and word[0] == word[2] == "'":
        return ord(word[1])
    if kind.bits == 1 and word.lower() in ("true", "false"):
        return int(word.lower() == "true")
    number = _as_integer(word)
    if number is None:
        raise ValueError(f"{where}: expected an integer for {kind}, got {word!r}")
    return number


def _as_integer(word: str) -> int | None:
    try:
        return int(word, 0)
    except ValueError:
        return int(word) if word.isdecimal() else None


def _sequence(word: str, kind: Type, where: str) -> Any:
    try:
        value = ast.literal_eval(word)
    except (ValueError, SyntaxError):
        value = None
    if not isinstance(value, (tuple, list, dict)):
        raise ValueError(f"{where}: expected a value for {kind} such as '(1, 2)', got {word!r}")
    return value


def _guessed(word: str, *, allow_number: bool) -> Any:
    number = _as_integer(word)
    if number is not None:
        return number
    try:
        return float(word) if allow_number else word
    except ValueError:
        return word
