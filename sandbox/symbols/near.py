"""Suggestions for names that were not found."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from itertools import islice

_MOST = 20_000
"""The most names that are compared: comparing many more takes seconds."""


def did_you_mean(name: str, names: Iterable[str], shown: Mapping[str, str] | None = None) -> str:
    """`; did you mean a or b?`, of at most three of `names` that are like `name`; '' if there is none.

    `shown`: what is written in place of some of them.
    """
    near = difflib.get_close_matches(name, list(dict.fromkeys(islice(names, _MOST))), 3)
    near = [shown.get(each, each) for each in near] if shown else near
    return f"; did you mean {' or '.join(near)}?" if near else ""
