"""Stacks as a file of speedscope (https://www.speedscope.app/file-format-schema.json): a sampled profile for each process."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_PYTHON = re.compile(r"(.+) \((.+):(\d+)\)")
_NATIVE = re.compile(r"(.+) \[(.+)\]")
Stacks = Iterable[tuple[Sequence[str], int]]


def speedscope(title: str, profiles: Mapping[str, Stacks], unit: str = "nanoseconds") -> str:
    """The file, on one line. `profiles`: by name, frames, outermost first, and what the innermost of them took itself.

    `unit`: of the values, nanoseconds or none.
    """
    frames: dict[str, int] = {}
    made = [_profile(name, stacks, unit, frames) for name, stacks in profiles.items()]
    document = {
        "$schema": _SCHEMA,
        "name": title,
        "exporter": "fprobe",
        "activeProfileIndex": 0,
        "shared": {"frames": [*map(_frame, frames)]},
        "profiles": made,
    }
    return json.dumps(document, separators=(",", ":"))


def _profile(name: str, stacks: Stacks, unit: str, frames: dict[str, int]) -> dict[str, Any]:
    """`frames`: the numbers of the frames so far; new ones are added."""
    samples, weights = [], []
    for stack, value in stacks:
        samples.append([frames.setdefault(frame, len(frames)) for frame in stack])
        weights.append(value)
    return {
        "type": "sampled",
        "name": name,
        "unit": unit,
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }


def _frame(text: str) -> dict[str, Any]:
    """The name apart from what colours the frame: a script with its line, or a library."""
    if found := _PYTHON.fullmatch(text):
        return {"name": found[1], "file": found[2], "line": int(found[3])}
    if found := _NATIVE.fullmatch(text):
        return {"name": found[1], "file": found[2]}
    return {"name": text}
