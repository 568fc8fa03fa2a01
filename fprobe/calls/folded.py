"""Folded stacks, the input of flame graph tools: lines `outer;inner VALUE`."""

from __future__ import annotations

from collections.abc import Iterable


def folded_stack(frames: Iterable[str]) -> str:
    """A stack as one word of such a line. `frames`: outermost first; a semicolon in a name becomes a colon."""
    return ";".join(frame.replace(";", ":") for frame in frames)
