"""`glob:traceon[:count]` and `glob:traceoff[:count]`, written to set_ftrace_filter."""

from __future__ import annotations

import errno
import re
from dataclasses import replace
from typing import Protocol

from ftrace.filters.function_probes import (
    FunctionProbeOps,
    Subject,
    register_ftrace_function_probe,
    unregister_ftrace_function_probe_func,
)

UNLIMITED = -1
"""The count of a command without a count."""
_LARGEST = (1 << 64) - 1
_NUMBER = re.compile(r"\+?(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")


class Instance(Protocol):
    """The trace array that traceon and traceoff act on (ftrace.events.trace_array.TraceArray); None: the top level."""

    @property
    def switch(self) -> int: ...


def probe_command(func: str, command: str, parameter: str | None, instance: Instance | None) -> None:
    """traceon and traceoff: `func:command[:count]`."""
    name = "function_switch_on" if command == "traceon" else "function_switch_off"
    probe_ops = FunctionProbeOps(command, name, counted=parameter is not None)
    if instance is not None:
        probe_ops = replace(probe_ops, subject=lambda: Subject(instance.switch, keep=instance), owner=instance)
    apply(func, probe_ops, parameter)


def apply(func: str, probe_ops: FunctionProbeOps, count: str | None) -> None:
    """Put a probe on the functions of `func`, or, with a leading `!`, take it off: `!func:command` the one without a count,
    `!func:command:0` the one with a count.

    Raises OSError: EINVAL for a count that is no number, and if there is nothing to add; ENODEV if there is nothing to take
    back; ERANGE for a count beyond 64 bits.
    """
    if func.startswith("!!"):
        raise OSError(errno.EINVAL, f"{func!r} is negated twice")
    if func.startswith("!"):
        unregister_ftrace_function_probe_func(func[1:], probe_ops)
    else:
        register_ftrace_function_probe(func, probe_ops, _count(count) if count else UNLIMITED)


def _count(text: str) -> int:
    """A count in C's notation, stored in a signed word as in the kernel."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise OSError(errno.EINVAL, f"{text!r} is not a count; give a number in C's notation")
    digits = match[1]
    number = int(digits, 8 if digits[0] == "0" and digits[1:].isdigit() else 0)
    if number > _LARGEST:
        raise OSError(errno.ERANGE, f"the count is {text}; the maximum is {_LARGEST}")
    return number - (number >> 63 << 64)
