"""The contents of maps as text, and as objects for JSON."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

from ftrace.core.maps.areas import Map
from ftrace.core.maps.array import Array
from ftrace.core.maps.hash import Hash
from ftrace.core.maps.histogram import Bucket, Histogram
from ftrace.core.maps.variable import PerTask

Describe = Callable[[int], str]


def map_lines(contents: Map | PerTask, describe: Describe = str) -> Iterator[str]:
    """A map's contents, a line for each entry; `describe` writes the keys of a Hash. Empty entries are left out."""
    if isinstance(contents, Histogram):
        yield from contents.lines()
        return
    if isinstance(contents, Hash):
        ordered = sorted(contents.items(), key=lambda item: (-_weight(item[1]), item[0]))
        yield from _pairs((describe(key), value) for key, value in ordered)
    elif isinstance(contents, (Array, PerTask)):
        yield from _pairs((str(key), value) for key, value in contents.items() if _weight(value))
    if isinstance(contents, Map) and (dropped := contents.dropped_line()):
        yield dropped


def entries(contents: Map | PerTask) -> Iterator[dict[str, Any]]:
    """A map's entries as plain values: of a Histogram the buckets, of others key and value."""
    for key, value in contents.items():
        if isinstance(value, Bucket):
            yield {"row": key, "low": value.low, "high": value.high, "count": value.count}
        else:
            yield {"key": key, "value": _value(value)}


def _value(value: Any) -> Any:
    fields = getattr(type(value), "_fields_", None)
    if fields is not None:
        return {name: _value(getattr(value, name)) for name, *_ in fields}
    return value if isinstance(value, (int, type(None))) else [_value(part) for part in value]


def _pairs(pairs: Iterator[tuple[str, Any]]) -> Iterator[str]:
    found = [(key, _plain(value)) for key, value in pairs]
    width = max((len(key) for key, _ in found), default=0)
    return (f"  {key:<{width}}  {value}" for key, value in found)


def _plain(value: Any) -> str:
    if isinstance(value, ctypes.Structure):
        return ", ".join(f"{name}={_plain(getattr(value, name))}" for name, *_ in type(value)._fields_)
    return str(list(value) if isinstance(value, ctypes.Array) else value)


def _weight(value: Any) -> int:
    """The sort key of an entry: a number itself, the first field of a struct."""
    if isinstance(value, ctypes.Structure):
        return _weight(getattr(value, type(value)._fields_[0][0]))
    return value if isinstance(value, int) else int(any(value or ()))
