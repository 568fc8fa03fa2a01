"""Arrow tables of calls and of events, from the arrays that native code fills."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fprobe.export.columns.layout import Columns, columns_for, number_type, struct_of
from fprobe.export.columns.pages import NULL, Batch, Chosen, Pages
from fprobe.export.formats import EventFormat, FieldFormat
from fprobe.report.tree import folded_stack
from ftrace.hit.events.builtin_records import FTRACE_TRAMPOLINE_MARKER
from sandbox.process.printable import utf8

if TYPE_CHECKING:
    import pyarrow

CALL, EVENT, STACK, LOST = "call", "event", "stack", "lost"
_STACKS = ("kernel_stack", "user_stack")


class Place(NamedTuple):
    """Where records come from: the process, None if it is not known, and the name of the trace array."""

    pid: int | None
    instance: str


class Source(Protocol):
    """What records need to be understood; more may be known each time one asks."""

    @property
    def formats(self) -> Mapping[int, EventFormat]:
        """Events by their type numbers."""

    def name(self, address: int, /) -> str:
        """`symbol [module]`; the bare address in hexadecimal if no symbol covers it."""

    def comm(self, tid: int, /) -> str | None:
        """The name of a thread; None if it is not known."""


class Tables:
    """Makes tables. `places`: by the origins of slots; `columns`: by default those for the events that are known now."""

    def __init__(
        self, source: Source, pages: Pages, places: Sequence[Place], offset: int, columns: Columns | None = None
    ) -> None:
        self._source, self._pages, self._places, self._offset = source, pages, places, offset
        self.columns = columns or columns_for(source.formats.values())
        self._functions: list[tuple[str, str]] = [("", "")]
        self._stacks: list[tuple[int, int]] = [(NULL, NULL)]

    def calls(self, **others: Any) -> pyarrow.Table:
        """The calls that wait, which are removed. `others`: arrays for further columns."""
        import pyarrow as pa
        import pyarrow.compute as pc

        rows = self._pages.rows
        count, rows.count = rows.count, 0
        array = {
            name: pa.Array.from_buffers(_ARROW[name](pa), count, [None, pa.py_buffer(each)])
            for name, each in self._pages.arrays.items()
            if name in _ARROW
        }
        if rows.unfinished:
            for name in ("duration", "own"):
                array[name] = pc.if_else(pc.less(array[name], 0), None, array[name])
            rows.unfinished = 0
        self._name_functions()
        found = {
            "time_ns": array["entered"],
            "duration_ns": array["duration"],
            "self_ns": array["own"],
            "tid": array["tid"],
            "depth": array["depth"],
            "ax": array["ax"],
            "comm": _mapped(array["tid"], self._source.comm),
            "function": _coded(array["function"], [name for name, _ in self._functions]),
            "module": _mapped(array["function"], lambda number: self._functions[number][1] or None),
            "stack": _mapped(array["stack"], self._stack_text),
            **self._places_of(array["origin"]),
            **others,
        }
        return self._table(CALL, count, found)

    def events(self, batch: Batch, origin: int) -> Iterator[pyarrow.Table]:
        """A table for each type of a sub-buffer's records that are not only entries and returns."""
        for number in batch.types:
            yield self._of_type(batch.of_type(number, self._offset), number, self._source.formats.get(number), origin)

    def _of_type(self, chosen: Chosen, number: int, event: EventFormat | None, origin: int) -> pyarrow.Table:
        import pyarrow as pa

        tids = pa.Array.from_buffers(pa.int32(), chosen.count, [None, pa.py_buffer(chosen.column(4, 4))])
        found = {
            "time_ns": pa.Array.from_buffers(pa.int64(), chosen.count, [None, pa.py_buffer(chosen.times)]),
            "tid": tids,
            "comm": _mapped(tids, self._source.comm),
            **self._constant(origin, chosen.count),
        }
        if event is not None and event.name in _STACKS:
            found["stack"] = _texts([utf8(self._callers(event, each)) for each in chosen.records()])
            return self._table(STACK, chosen.count, found)
        found["event"] = _texts([event.name if event else f"type {number}"] * chosen.count)
        found |= self._place_hit(event, chosen)
        if event is not None and (column := self.columns.of(event)) is not None:
            found[column] = self._struct(event, chosen)
        elif event is not None:
            found["fields"] = pa.array([json.dumps(event.values(each)) for each in chosen.records()], pa.string())
        return self._table(EVENT, chosen.count, found)

    def lost(self, time: int, tid: int, number: int | None, origin: int) -> pyarrow.Table:
        """A row for records that are missing before that time of the records' clock."""
        import pyarrow as pa

        found = {
            "time_ns": pa.array([time + self._offset]),
            "tid": pa.array([tid], pa.int32()),
            "lost": pa.array([number], pa.int64()),
        }
        comm = _texts([utf8(self._source.comm(tid))])
        return self._table(LOST, 1, found | {"comm": comm} | self._constant(origin, 1))

    def _struct(self, event: EventFormat, chosen: Chosen) -> Any:
        import pyarrow as pa

        kind, records = struct_of(event), None
        arrays = []
        for at, field in enumerate(event.fields):
            if field.is_number:
                data = pa.py_buffer(chosen.column(field.offset, field.size))
                arrays.append(pa.Array.from_buffers(number_type(field), chosen.count, [None, data]))
            else:
                records = records or list(chosen.records())
                arrays.append(pa.array([_value(field, each) for each in records], kind.field(at).type))
        return pa.StructArray.from_arrays(arrays, fields=[kind.field(at) for at in range(kind.num_fields)])

    def _place_hit(self, event: EventFormat | None, chosen: Chosen) -> dict[str, Any]:
        """The function of a probe event, or of a record of the function tracer."""
        import pyarrow as pa

        names = ("__probe_func", "__probe_ip", "ip")
        field = next((each for name in names for each in (event.fields if event else ()) if each.name == name), None)
        if field is None or field.size != 8:
            return {}
        data = pa.py_buffer(chosen.column(field.offset, field.size))
        where = pa.Array.from_buffers(pa.uint64(), chosen.count, [None, data])
        return {
            "function": _mapped(
                where, lambda address: function_and_module(self._source.name(address))[0] if address else None
            ),
            "module": _mapped(where, lambda address: function_and_module(self._source.name(address))[1] or None),
        }

    def _callers(self, event: EventFormat, record: bytes) -> str:
        callers = [each for each in event.addresses("caller", record) if each not in (0, FTRACE_TRAMPOLINE_MARKER)]
        return folded_stack(function_and_module(self._source.name(each))[0] for each in reversed(callers))

    def _name_functions(self) -> None:
        keys = self._pages.functions.keys(len(self._functions))
        self._functions += [function_and_module(self._source.name(address)) for address in keys]

    def _stack_text(self, number: int) -> str | None:
        """The frames of a stack, joined."""
        known = self._stacks
        known += [(key >> 32, key & 0xFFFF_FFFF) for key in self._pages.stacks.keys(len(known))]
        frames = []
        while number:
            number, function = known[number]
            frames.append(self._functions[function][0])
        return folded_stack(reversed(frames)) or None

    def _places_of(self, origins: Any) -> dict[str, Any]:
        pids, names = [each.pid for each in self._places], [each.instance or None for each in self._places]
        import pyarrow as pa

        return {"pid": pa.array(pids, pa.int32()).take(origins), "instance": _mapped(origins, names.__getitem__)}

    def _constant(self, origin: int, count: int) -> dict[str, Any]:
        import pyarrow as pa

        return self._places_of(pa.repeat(pa.scalar(origin, pa.int32()), count))

    def _table(self, kind: str, count: int, found: dict[str, Any]) -> pyarrow.Table:
        import pyarrow as pa

        found["kind"] = _coded(pa.repeat(pa.scalar(0, pa.int32()), count), [kind])
        return pa.Table.from_arrays(
            [found[each.name] if each.name in found else pa.nulls(count, each.type) for each in self.columns.schema],
            schema=self.columns.schema,
        )


_ARROW: dict[str, Callable[[Any], Any]] = {
    "entered": lambda pa: pa.int64(), "duration": lambda pa: pa.int64(), "own": lambda pa: pa.int64(),
    "ax": lambda pa: pa.uint64(), "tid": lambda pa: pa.int32(), "function": lambda pa: pa.int32(),
    "stack": lambda pa: pa.int32(), "depth": lambda pa: pa.int32(), "origin": lambda pa: pa.int32(),
}  # fmt: skip


def _coded(numbers: Any, names: Sequence[str | None]) -> Any:
    """Texts by their numbers."""
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(numbers, pa.array(utf8(list(names)), pa.string()))


def _mapped(values: Any, text: Callable[[Any], str | None]) -> Any:
    """A text for each value; each different value is asked for once."""
    import pyarrow as pa

    coded = values.dictionary_encode()
    texts = [text(each) for each in coded.dictionary.to_pylist()]
    distinct = {name: number for number, name in enumerate(dict.fromkeys(each for each in texts if each is not None))}
    numbers = pa.array([None if each is None else distinct[each] for each in texts], pa.int32())
    indices = coded.indices if len(distinct) == len(texts) else numbers.take(coded.indices)
    return _coded(indices, list(distinct))


def _texts(values: Sequence[str | None]) -> Any:
    import pyarrow as pa

    return pa.array(values, pa.string()).dictionary_encode()


def _value(field: FieldFormat, record: bytes) -> Any:
    """A field's value, as a column can have it."""
    return utf8(field.value(record))


def function_and_module(name: str) -> tuple[str, str]:
    """The two parts of `symbol [library]`; the second is '' if there is none."""
    function, _, module = name.partition(" [")
    return function, module.removesuffix("]")
