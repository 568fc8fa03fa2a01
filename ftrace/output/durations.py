"""Durations as function_graph and latency-format show them. trace_print_graph_duration(), trace_find_mark()."""

from __future__ import annotations

_MARKS = ((1_000_000_000, "$"), (100_000_000, "@"), (10_000_000, "*"), (1_000_000, "#"), (100_000, "!"), (10_000, "+"))
"""The mark of a duration: the first whose nanoseconds it exceeds."""
_DIGITS, _WIDTH = 7, 8


def mark(duration: int) -> str:
    """The mark of a duration in nanoseconds: trace_find_mark()."""
    return next((letter for limit, letter in _MARKS if duration > limit), " ")


def duration_text(duration: int) -> str:
    """A duration in nanoseconds as microseconds with at most seven digits: trace_print_graph_duration()."""
    microseconds, rest = divmod(duration, 1000)
    text = str(microseconds)
    if len(text) < _DIGITS:
        text += "." + f"{rest:03}"[: _DIGITS - len(text)]
    return text + " us " + " " * (_WIDTH - len(text))
