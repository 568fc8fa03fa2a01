"""What a terminal can do, and its size."""

from __future__ import annotations

import os
import stat

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


def width(descriptor: int) -> int | None:
    """The number of columns for text that stays: as COLUMNS or the terminal says; None for a file, or where neither does."""
    try:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        columns = 0 if is_file else _number("COLUMNS", 0) or os.get_terminal_size(descriptor).columns
    except OSError:
        return None
    return columns or None


def _number(variable: str, usual: int) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() and int(text) else usual
