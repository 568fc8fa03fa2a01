"""Parsing numbers and truth values, by the rules of the kernel's lib/kstrtox.c."""

from __future__ import annotations

import errno
import re

ULONG_MAX = (1 << 64) - 1
_LONG_MAX = (1 << 63) - 1
_MOST_DIGITS = 22
"""The digits of a 64-bit number in octal. int() refuses decimal numbers of thousands of digits."""
_DIGITS = {8: "01234567", 10: "0123456789", 16: "0123456789abcdefABCDEF"}
_TRUE, _FALSE = (*"yYtT1", "on"), (*"nNfF0", "of")
_HEX = re.compile(r"0[xX][0-9a-fA-F]")


def kstrtoull(text: str, base: int = 0) -> int:
    """An unsigned 64-bit number: an optional `+`, digits, and at most one newline after them.

    `base` 0 means C's rules: 0x for hexadecimal, 0 for octal. Raises OSError: EINVAL, ERANGE.
    """
    return _unsigned(text.removeprefix("+"), text, base)


def kstrtoll(text: str, base: int = 0) -> int:
    """A signed 64-bit number, written as for `kstrtoull` or with a `-`. Raises OSError: EINVAL, ERANGE."""
    if text.startswith("-"):
        value = -_unsigned(text[1:], text, base)
    else:
        value = kstrtoull(text, base)
    if not -_LONG_MAX - 1 <= value <= _LONG_MAX:
        raise OSError(errno.ERANGE, f"{text!r} does not fit a signed number of 64 bits")
    return value


def kstrtouint(text: str, base: int = 0) -> int:
    """An unsigned 32-bit number. Raises OSError: EINVAL, ERANGE."""
    value = kstrtoull(text, base)
    if value >= 1 << 32:
        raise OSError(errno.ERANGE, f"{text!r} does not fit an unsigned number of 32 bits")
    return value


def kstrtobool(text: str) -> bool:
    """A truth value: y, t, 1 or on; n, f, 0 or off. Only the first letters count. Raises OSError(EINVAL)."""
    for value, beginnings in ((True, _TRUE), (False, _FALSE)):
        if text.startswith(beginnings) or text[:2].lower() in beginnings:
            return value
    raise OSError(errno.EINVAL, f"{text!r} is not a truth value; write 1 or 0, y or n, on or off")


def simple_strtoul(text: str, base: int = 0) -> tuple[int, str]:
    """The number at the start of `text`, modulo 2**64, and the text after it; (0, text) if there is none."""
    base, start = _radix(text, base)
    end = _end_of_digits(text, start, base)
    if end == start:
        return 0, text
    return int(text[start:end], base) & ULONG_MAX, text[end:]


def _unsigned(digits: str, text: str, base: int) -> int:
    base, start = _radix(digits, base)
    end = _end_of_digits(digits, start, base)
    significant = digits[start:end].lstrip("0")
    if len(significant) > _MOST_DIGITS or int(significant or "0", base) > ULONG_MAX:
        # Comes first: _kstrtoull() looks at what follows the digits only if they fit.
        raise OSError(errno.ERANGE, f"{text[:80]!r} does not fit a number of 64 bits")
    if end == start or digits[end:] not in ("", "\n"):
        raise OSError(errno.EINVAL, f"{text!r} is not a number")
    return int(significant or "0", base)


def _radix(text: str, base: int) -> tuple[int, int]:
    """The base, and where the digits begin."""
    if base in (0, 16) and _HEX.match(text):
        return 16, 2
    if base == 0:
        return (8 if text.startswith("0") else 10), 0
    return base, 0


def _end_of_digits(text: str, start: int, base: int) -> int:
    end = start
    while end < len(text) and text[end] in _DIGITS[base]:
        end += 1
    return end
