"""What speedscope's published schema asks of a file with sampled profiles, as assertions of ours."""

from __future__ import annotations

import json
from typing import Any

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
UNITS = {"none", "nanoseconds", "microseconds", "milliseconds", "seconds", "bytes"}


def profiles(text: str) -> dict[str, tuple[str, dict[tuple[str, ...], int]]]:
    """By name of profile: its unit, and its values by the names of the frames."""
    document = json.loads(text)
    assert document["$schema"] == SCHEMA and set(document) <= {
        "$schema", "name", "exporter", "activeProfileIndex", "shared", "profiles"
    }  # fmt: skip
    assert 0 <= document["activeProfileIndex"] < len(document["profiles"])
    frames = document["shared"]["frames"]
    types = {"name": str, "file": str, "line": int, "col": int}
    for frame in frames:
        assert "name" in frame and all(type(value) is types[key] for key, value in frame.items())
    return {each["name"]: (each["unit"], _values(each, frames)) for each in document["profiles"]}


def _values(profile: dict[str, Any], frames: list[dict[str, Any]]) -> dict[tuple[str, ...], int]:
    required = {"type", "name", "unit", "startValue", "endValue", "samples", "weights"}
    assert set(profile) == required and profile["type"] == "sampled" and profile["unit"] in UNITS
    assert len(profile["samples"]) == len(profile["weights"])
    assert profile["endValue"] - profile["startValue"] == sum(profile["weights"])
    samples = [tuple(frames[number]["name"] for number in sample) for sample in profile["samples"]]
    return dict(zip(samples, profile["weights"], strict=True))
