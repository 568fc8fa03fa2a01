"""Range checks for integers that Python passes to native code, where a field has a width and no exception is raised."""

from __future__ import annotations

import errno
import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

INT_MAX = (1 << 31) - 1
U32_MAX = (1 << 32) - 1
S64_MIN, S64_MAX = -(1 << 63), (1 << 63) - 1
U64_MAX = (1 << 64) - 1


def integer(name: str, value: Any, low: float = -math.inf, high: float = math.inf, code: int = errno.EINVAL) -> int:
    """`value` as an int. `name` is what the caller's user calls it; `low` and `high` are the bounds, both allowed.

    Raises TypeError if it is not an integer (8.5, "8"), OSError with the errno `code` if it is out of bounds.
    """
    return between(name, value, low, high, partial(OSError, code))


def whole(name: str, value: Any) -> int:
    """`value` as an int. Raises TypeError naming it if it is not an integer."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}; it must be an integer") from None


def between(name: str, value: Any, low: float, high: float, error: Callable[[str], Exception] = ValueError) -> int:
    """As `integer`, for what is not a call of the kernel: raises `error` if it is out of bounds."""
    number = whole(name, value)
    if not low <= number <= high:
        raise error(f"{name} is {number}; it must be between {low} and {high}")
    return number
