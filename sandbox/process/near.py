"""Suggestions for names that were not found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

_MOST = 20_000
"""Maximum number of names that are compared; comparing many more takes seconds."""


def did_you_mean(name: str, names: Iterable[str], shown: Mapping[str, str] | None = None, least: float = 0.6) -> str:
    """`; did you mean a or b?` with at most three of `names` that are similar to `name`; '' if none is.

    `shown`: name -> the text that replaces it in the result. `least`: the similarity that is needed, at least 0.6 of 1.
    """
    import difflib

    low, high = len(name) * 3 / 7, len(name) * 7 / 3  # difflib's least ratio is 0.6: twice the shorter length by both
    possible = [each for each in dict.fromkeys(islice(names, _MOST)) if low <= len(each) <= high]
    near = difflib.get_close_matches(name, possible, 3, least)
    near = [shown.get(each, each) for each in near] if shown else near
    return f"; did you mean {' or '.join(near)}?" if near else ""
