"""Objects as JSON, and as the rows of one CSV table."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_FIELDS = "fields"
_LINE_END = "\r\n"


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON; NaN and infinities, which it does not have, become the strings "nan", "inf" and "-inf"."""
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), indent=indent)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def csv_lines(objects: Callable[[], Iterable[dict[str, Any]]]) -> Iterator[str]:
    """A line with the names of the columns, and one for each object, without line ends.

    A column is a key of any object, in the order in which they first appear; the members of `fields`, which a record has, are
    columns, too: of the name `field_NAME` if NAME is one of the others. Lists and objects are JSON; None is empty.

    `objects`: is called twice, since the first line needs the keys of all of them.
    """
    common: dict[str, None] = {}
    fields: dict[str, None] = {}
    for each in objects():
        common |= dict.fromkeys(each)
        fields |= dict.fromkeys(_fields(each))
    if fields:
        del common[_FIELDS]
    yield _line([*common, *(f"field_{name}" if name in common else name for name in fields)])
    for each in objects():
        inner = _fields(each)
        yield _line([*(_cell(each.get(name)) for name in common), *(_cell(inner.get(name)) for name in fields)])


def _fields(each: dict[str, Any]) -> dict[str, Any]:
    """The fields of a record; empty if the object is none."""
    found = each.get(_FIELDS)
    return found if isinstance(found, dict) else {}


def _cell(value: Any) -> Any:
    return json_text(value) if isinstance(value, (dict, list, tuple)) else value


def _line(cells: list[Any]) -> str:
    made = io.StringIO()
    csv.writer(made, lineterminator=_LINE_END).writerow(cells)  # cells with one of its letters are quoted
    return made.getvalue().removesuffix(_LINE_END)
