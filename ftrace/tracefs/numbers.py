"""Parsing of numbers and switches written to control files."""

from __future__ import annotations

import errno

from ftrace.kstrtox import kstrtoull


def written_number(text: str) -> int:
    """Parse a decimal number, with an optional `+` before it and newline after it. Raises OSError: EINVAL, ERANGE."""
    return kstrtoull(text, 10)


def written_switch(text: str) -> bool:
    """Parse 0 or 1. Raises OSError: EINVAL for anything else, ERANGE for a number beyond 64 bits."""
    value = written_number(text)
    if value > 1:
        raise OSError(errno.EINVAL, f"the value is {text.strip()!r}; it must be 0 or 1")
    return bool(value)
