"""What a terminal can do, and its size."""

from __future__ import annotations

import os

_USUAL = 24, 80


def takes_escapes(descriptor: int) -> bool:
    """Whether it is a terminal that moves its cursor and has colours: not one of type dumb, nor of no known type."""
    return os.isatty(descriptor) and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def size(descriptor: int) -> tuple[int, int]:
    """Number of rows and of columns now; where the terminal does not know, as LINES and COLUMNS say, or 24 and 80."""
    try:
        columns, lines = os.get_terminal_size(descriptor)
    except OSError:
        columns = lines = 0
    return lines or _number("LINES", _USUAL[0]), columns or _number("COLUMNS", _USUAL[1])


def _number(variable: str, usual: int) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() and int(text) else usual
