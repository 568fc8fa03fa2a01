"""Numbers and switches that are written to control files."""

from __future__ import annotations

import errno

from ftrace.kstrtox import kstrtoull


def written_number(text: str) -> int:
    """A decimal number, with an optional `+` and one newline. Raises OSError: EINVAL, ERANGE."""
    return kstrtoull(text, 10)


def written_switch(text: str) -> bool:
    """0 or 1. Raises OSError(EINVAL)."""
    value = written_number(text)
    if value > 1:
        raise OSError(errno.EINVAL, f"{text.strip()!r} is neither 0 nor 1")
    return bool(value)
