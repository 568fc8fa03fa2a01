"""Comparing a replay with the kernel's log, line by line."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from tests.scenarios.deliberate import comparable
from tests.scenarios.log import Line


def differences(ours: Sequence[Line], kernel: Sequence[str]) -> list[str]:
    """The unified diff from the kernel's log to ours, without what is different on purpose; empty if they agree."""
    mine, theirs = comparable(ours, kernel)
    return list(difflib.unified_diff(theirs, mine, "kernel", "ours", lineterm=""))
