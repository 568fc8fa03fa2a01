"""tracing_on: whether records are kept. While it is off, probes are hit and handlers run as before."""

from __future__ import annotations

import ctypes
import errno
from functools import cache

from ftrace.core.runtime import runtime


@cache
def _switch() -> ctypes.c_uint64:
    return runtime().image.variable("tracing_on")


def switch_address() -> int:
    """The address of the switch, for native code."""
    return ctypes.addressof(_switch())


def tracing_on() -> None:
    """Keep records from now on."""
    _switch().value = 1


def tracing_off() -> None:
    """Stop recording: `Record` and `Recorder` keep the records they have."""
    _switch().value = 0


def tracing_is_on() -> bool:
    """Whether records are kept."""
    return bool(_switch().value)


def read_tracing_on() -> str:
    """The contents of the file: "1\\n" or "0\\n"."""
    return f"{int(tracing_is_on())}\n"


def write_tracing_on(text: str) -> None:
    """Write to the file: a decimal number, 0 for off. Raises OSError(EINVAL) for anything else."""
    digits = text.removesuffix("\n").removeprefix("+")
    if not (digits.isascii() and digits.isdigit()):
        raise OSError(errno.EINVAL, f"tracing_on is {text!r}; it must be 0 or 1")
    _switch().value = int(int(digits) != 0)
