"""Values of arguments, as the histograms in the file of counts have them: by function, and caller, thread or argument."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fprobe.report.order import Order
from fprobe.report.tables import group_text
from fprobe.run import session
from fprobe.run.launcher.process import Process
from fprobe.run.values import Values
from sandbox.process.bars import barred
from sandbox.threads.counters import used

_HEADER = struct.Struct("<2Q")
_HEADER_SIZE = 64
_KEY_AT = 2
"""As in `ftrace.hit.events.table_records`: words of an entry before its key."""
_WIDTH = 20


class Entry(NamedTuple):
    """An entry of a histogram. `key`: the function's address, and those of `by` and `of` that are asked for."""

    key: tuple[Any, ...]
    hits: int
    total: int


@dataclass
class ValueRow:
    """The calls of a function, or of a function by a caller, thread or argument.

    `total`: the sum of the argument to add up; `sizes`: calls by n, where 2^n is the first power of two not below the value.
    """

    function: dict[str, str]
    shown: str
    by: Any = None
    hits: int = 0
    total: int = 0
    sizes: dict[int, int] = field(default_factory=dict)


@dataclass
class ValueTable:
    """The rows of one process or of all. `dropped`: calls that found no place in a histogram."""

    rows: list[ValueRow]
    dropped: int = 0

    def ordered(self, order: Order, *, by_sum: bool) -> tuple[list[ValueRow], int]:
        """The rows to show, the largest sums or most hits first, and the number of the others."""
        found = [row for row in self.rows if row.hits >= order.min_hits]
        found.sort(key=lambda row: (-row.total if by_sum else 0, -row.hits, row.shown))
        shown = found[: order.most]
        return shown, len(self.rows) - len(shown)


def table_of(process: Process, counts: int, values: Values) -> ValueTable:
    """What was counted in one process."""
    found: dict[tuple[Any, ...], ValueRow] = {}
    dropped = 0
    of = values.names[0]
    has_by = values.by != "function"
    for layout in process.value_layouts.values():
        for part in process.parts[-1:]:
            entries, lost = _read(counts, part, layout)
            dropped += lost
            for entry in entries:
                key = entry.key[: 1 + has_by]
                row = found.get(key) or found.setdefault(key, _row(process, key, values.by))
                row.hits += entry.hits
                row.total += entry.total
                if of:
                    row.sizes[entry.key[-1]] = row.sizes.get(entry.key[-1], 0) + entry.hits
    return ValueTable(list(found.values()), dropped)


def _row(process: Process, key: tuple[Any, ...], by: str) -> ValueRow:
    named = process.names.function(key[0])
    if by == "function":
        return ValueRow(named.as_object(), str(named))
    origin = str(process.names.place(key[1])) if by == "caller" else key[1]
    return ValueRow(named.as_object(), f"{named}{group_text(by, origin)}", origin)


def total_of(tables: Iterable[ValueTable]) -> ValueTable:
    """The rows of all processes, by what is shown of them."""
    found: dict[str, ValueRow] = {}
    dropped = 0
    for table in tables:
        dropped += table.dropped
        for row in table.rows:
            known = found.setdefault(row.shown, ValueRow(row.function, row.shown, row.by))
            known.hits += row.hits
            known.total += row.total
            for size, hits in row.sizes.items():
                known.sizes[size] = known.sizes.get(size, 0) + hits
    return ValueTable(list(found.values()), dropped)


def total_over(tables: Mapping[int, ValueTable], values: Values) -> ValueTable | None:
    """The rows of all processes together; None if there is one, or if threads are told apart, which are of one process."""
    return total_of(tables.values()) if len(tables) > 1 and values.by != "thread" else None


def _read(counts: int, part: int, layout: dict[str, Any]) -> tuple[list[Entry], int]:
    """The entries of all threads' tables of one histogram, and the number of calls that found no place."""
    start = session.HEADER + part * session.PART + session.MAPS_AT + layout["offset"]
    stride, size = layout["stride"], layout["entry"]
    found, dropped, at, end = list[Entry](), 0, start, start + stride * layout["threads"]
    while (part_used := next(used(counts, at, end), None)) is not None:
        row = start + (part_used[0] - start) // stride * stride
        data = os.pread(counts, stride, row)
        _, lost = _HEADER.unpack_from(data)
        dropped += lost
        found += _entries(data[_HEADER_SIZE : _HEADER_SIZE + (stride - _HEADER_SIZE) // size * size], layout)
        at = row + stride
    return found, dropped


def _entries(data: bytes, layout: dict[str, Any]) -> Iterator[Entry]:
    widths, size = layout["keys"], layout["entry"]
    hits_at = _KEY_AT + sum(widths)
    for start in range(0, len(data), size):
        words = struct.unpack_from(f"<{size // 8}Q", data, start)
        if words[1]:
            keys, at = [], _KEY_AT
            for width, is_signed in zip(widths, layout["signed"], strict=False):
                keys.append(_number(words[at], is_signed) if width == 1 else _text(data[start + 8 * at :][: 8 * width]))
                at += width
            sums = zip(words[hits_at + 1 :][: layout["values"]], layout["signed"][len(widths) :], strict=True)
            yield Entry(tuple(keys), words[hits_at], sum(_number(word, is_signed) for word, is_signed in sums))


def _number(word: int, is_signed: bool) -> int:
    return word - (1 << 64) if is_signed and word >> 63 else word


def _text(data: bytes) -> str:
    return data.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def lines(table: ValueTable, values: Values, order: Order, width: int | None) -> Iterator[str]:
    """The table as text: for each row its calls and its sum, and a bar for each power of two. `width`: as for `barred`."""
    of, sum_, _ = values.names
    shown, left_out = table.ordered(order, by_sum=bool(sum_))
    for row in shown:
        added = f", {sum_} {row.total:,} in all" if sum_ else ""
        yield f"{row.shown}: {row.hits:,} call{'s' * (row.hits != 1)}{added}"
        if of:
            yield from _bars(row.sizes, width)
    if left_out:
        yield f"# {order.left_out(left_out)}"
    if table.dropped:
        yield f"# {table.dropped:,} calls are not in this table: a thread has place for 2,048 different rows"


def _bars(sizes: dict[int, int], width: int | None) -> Iterator[str]:
    most = max(sizes.values(), default=1)
    for size in range(min(sizes), max(sizes) + 1):
        low, high = limits(size)
        count = sizes.get(size, 0)
        yield barred(f"{low:>{_WIDTH},} .. {high:<{_WIDTH},} {count:>10,}", count, most, width)


def limits(size: int) -> tuple[int, int]:
    """The first and the last value whose next power of two is 2^size."""
    return ((1 << size - 1) + 1, 1 << size) if size else (0, 1)


def objects(table: ValueTable, values: Values, order: Order) -> list[dict[str, Any]]:
    """The rows for JSON."""
    of, sum_, argument = values.names
    key = {"caller": "caller", "thread": "tid", "function": ""}.get(values.by, argument)
    made = []
    for row in table.ordered(order, by_sum=bool(sum_))[0]:
        found: dict[str, Any] = {**row.function} | ({key: row.by} if key else {}) | {"hits": row.hits}
        if sum_:
            found["sum"] = {sum_: row.total}
        if of:
            found["values"] = [
                {"low": limits(size)[0], "high": limits(size)[1], "count": hits}
                for size, hits in sorted(row.sizes.items())
            ]
        made.append(found)
    return made


def left_out(table: ValueTable, values: Values, order: Order) -> int:
    """The number of rows that are not shown."""
    return table.ordered(order, by_sum=bool(values.sum))[1]


def tables(processes: Sequence[Process], counts: int, values: Values) -> dict[int, ValueTable]:
    """The table of each process that has histograms, by its number."""
    return {each.pid: table_of(each, counts, values) for each in processes if each.value_layouts and each.parts}
