"""Stacks as a flame graph in one HTML file."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

_PAGE = Path(__file__).with_name("flame.html")


class Stack(NamedTuple):
    """Calls with one stack. `frames`: outermost first; `value`: nanoseconds, excluding recorded calls inside, or a sum."""

    frames: tuple[str, ...]
    calls: int
    value: int


def flame_page(
    stacks: Sequence[Stack], title: str, probed: Sequence[str], *, has_processes: bool = False, unit: str = ""
) -> str:
    """The text of the file. `probed`: the patterns, as they were given; `has_processes`: the outermost frames are processes.

    `unit`: of the values; empty if they are times.
    """
    also = {"processes": has_processes, "probed": [*probed], "unit": unit}
    data = json.dumps(_data(stacks) | also, separators=(",", ":"))
    texts = {"TITLE": escape(title), "DATA": data.replace("</", "<\\/")}
    return re.sub("TITLE|DATA", lambda found: texts[found[0]], _PAGE.read_text())


def _data(stacks: Sequence[Stack]) -> dict[str, Any]:
    """`names`, and `stacks`: values, calls, and the numbers of the frames' names. Not nested: stacks may be deep."""
    names = {
        name: number for number, name in enumerate(dict.fromkeys(name for stack in stacks for name in stack.frames))
    }
    rows = [[stack.value, stack.calls, [names[name] for name in stack.frames]] for stack in stacks]
    return {"names": [*names], "stacks": rows}
