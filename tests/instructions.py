"""Where the instructions of a function begin."""

from __future__ import annotations


def boundaries(start: int, end: int) -> list[int]:
    """The addresses of the instructions in [start, end), ascending, read through probes and sites.

    Raises ValueError, naming the address, if bytes in between are no instruction or the last one goes beyond `end`.
    """
    from kprobes.jump.functions import function_at

    function = function_at(start, end)
    if function.stopped != end:
        raise ValueError(f"the bytes at {function.stopped:#x} are no x86-64 instruction")
    return list(function.starts)
