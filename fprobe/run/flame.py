"""A flame graph as a self-contained HTML file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from fprobe.run.folded import Stack

_PAGE = Path(__file__).with_name("flame.html")


def page(stacks: Sequence[Stack], title: str) -> str:
    """The HTML text of the page."""
    data = json.dumps(tree(stacks)).replace("</", "<\\/")
    return _PAGE.read_text().replace("TITLE", escape(title)).replace("DATA", data)


def tree(stacks: Sequence[Stack]) -> dict[str, Any]:
    """Nested frames, each with `name`, `value` (nanoseconds including inner frames) and `inner` (a list of frames)."""
    root: dict[str, Any] = {"name": "all", "value": 0, "inner": []}
    for stack in stacks:
        _add(root, stack.frames, stack.nanoseconds)
    return root


def _add(node: dict[str, Any], frames: Sequence[str], value: int) -> None:
    node["value"] += value
    for name in frames:
        known = next((inner for inner in node["inner"] if inner["name"] == name), None)
        if known is None:
            known = {"name": name, "value": 0, "inner": []}
            node["inner"].append(known)
        known["value"] += value
        node = known
