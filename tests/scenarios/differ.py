"""Comparing a replay with the kernel's log, line by line, by the rules for what is deliberately different."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from tests.scenarios.log import Line

_DATA = re.compile(r"(?<= data=\[)[^\]]*(?=\])")
_ANY = "*"


def compared(ours: Sequence[Line], kernel: Sequence[str]) -> tuple[list[str], list[str]]:
    """Both logs with what is not compared taken out.

    Lines of entry handlers that ran without a return node are dropped from ours. A word of entry data that nobody has
    stored in the same call is `*` in both.
    """
    lines = [line for line in ours if not line.extra]
    masked = [_masked(line.text, line.unstored) for line in lines]
    theirs = list(kernel)
    for index, line in enumerate(lines[: len(theirs)]):
        if _shape(line.text) == _shape(theirs[index]):
            theirs[index] = _masked(theirs[index], line.unstored)
    return masked, theirs


def differences(ours: Sequence[Line], kernel: Sequence[str]) -> list[str]:
    """The unified diff from the kernel's log to ours; empty if they agree."""
    masked, theirs = compared(ours, kernel)
    return list(difflib.unified_diff(theirs, masked, "kernel", "ours", lineterm=""))


def _shape(line: str) -> str:
    """A line without the contents of its entry data."""
    return _DATA.sub("", line)


def _masked(line: str, unstored: frozenset[int]) -> str:
    def mask(match: re.Match[str]) -> str:
        words = match[0].split(",")
        return ",".join(_ANY if index in unstored else word for index, word in enumerate(words))

    return _DATA.sub(mask, line) if unstored else line
