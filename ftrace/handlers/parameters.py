"""Whether a Python callable can be called as a handler."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any


def check_parameters(handler: Callable[..., Any], role: str, parameters: Sequence[str]) -> None:
    """Raise TypeError, naming `parameters`, for a handler that cannot be called with so many arguments.

    What does not tell its parameters, as some functions written in C, passes.
    """
    try:
        signature = inspect.signature(handler)
    except ValueError:
        return
    try:
        signature.bind(*parameters)
    except TypeError:
        name = getattr(handler, "__qualname__", repr(handler))
        article = "an" if role[0] in "aeiou" else "a"
        wanted = f"{article} {role} is called with {len(parameters)} arguments, ({', '.join(parameters)})"
        raise TypeError(f"{name}{signature} cannot be a handler here: {wanted}") from None
