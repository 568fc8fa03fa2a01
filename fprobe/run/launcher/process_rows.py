"""The calls and the records of probe events of one process as tables, from copies of its sub-buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from fprobe.calls.call_values import CallValues
from fprobe.calls.records import event_of
from fprobe.export.columns.addresses import texts_of_addresses
from fprobe.export.columns.layout import Columns
from fprobe.export.columns.pages import Kinds, Located, Pages
from fprobe.export.columns.parquet import losses
from fprobe.export.columns.tables import Place, Tables
from fprobe.export.formats import EventFormat, parse_format
from fprobe.run.launcher.probe_events import UNKNOWN_COMM
from fprobe.run.launcher.process import Process
from fprobe.run.launcher.slot_pages import Taken

if TYPE_CHECKING:
    import pyarrow

    from sandbox.abi.signatures import Integer

_CALLS = 1 << 15
"""Calls in a row group."""
_TAKEN = 1 << 18
"""Bytes of sub-buffers of a slot that are taken at once."""
_ALL_ONES = (1 << 64) - 1


class File(NamedTuple):
    """What is written to. `columns`: asked for when the first row is made; `write`: takes rows."""

    columns: Callable[[], Columns]
    write: Callable[[pyarrow.Table], None]
    comm: Callable[[int], str]
    offset: int
    """Added to times."""
    of_calls: Kinds
    of_events: Kinds
    located: Located


class _Source(NamedTuple):
    """See `fprobe.export.columns.tables.Source`."""

    formats: Mapping[int, EventFormat]
    name: Callable[[int], str]
    comm: Callable[[int], str | None]


class ProcessRows:
    """Makes the rows of a process, of which more may become known while it runs."""

    def __init__(self, process: Process, file: File) -> None:
        self._process, self._file = process, file
        self._calls = Pages(file.offset, self._write_calls, file.of_calls, _CALLS, file.located)
        self._events = Pages(file.offset, lambda: None, file.of_events, 0, file.located)
        self._formats: dict[int, EventFormat] = {}
        self._tables: tuple[Tables, Tables] | None = None
        self._values = CallValues(process.names)
        self._done = 0
        """Calls that wait, of which the results are known."""
        self._results: list[pyarrow.Array] = []

    def take_calls(self, slot: int, pages: Iterable[Taken]) -> None:
        """Take sub-buffers of entries and returns. Raises ValueError if one is damaged."""
        for joined in _joined(pages):
            batch = self._calls.take(0, slot, joined.data, joined.size)
            self._know_results()
            for table in losses(self._made[0], joined.lost, batch, 0):
                self._file.write(table)

    def take_events(self, slot: int, pages: Iterable[Taken]) -> Iterator[pyarrow.Table]:
        """Tables of the records in sub-buffers of probe events. Raises ValueError if one is damaged."""
        for joined in _joined(pages):
            self._formats |= {
                number: parse_format(*text)
                for number, text in self._process.formats.items()
                if number not in self._formats
            }
            batch = self._events.take(0, slot, joined.data, joined.size)
            yield from losses(self._made[1], joined.lost, batch, 0)
            yield from self._made[1].events(batch, 0)

    def end(self) -> None:
        """Nothing follows: write the calls that wait, and those in progress without durations."""
        self._calls.end()
        self._write_calls()

    @property
    def _made(self) -> tuple[Tables, Tables]:
        """Those of calls and of events."""
        if self._tables is None:
            names, comm = self._process.names, self._file.comm
            place, columns = [Place(self._process.pid, "")], self._file.columns()
            calls = _Source({}, lambda ip: str(names.function(ip)), lambda tid: _known(comm(tid)))
            events = _Source(self._formats, names.name, comm)
            self._tables = (
                Tables(calls, self._calls, place, self._file.offset, columns),
                Tables(events, self._events, place, self._file.offset, columns),
            )
        return self._tables

    def _write_calls(self) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        self._know_results()
        if not self._done:
            return
        table = self._made[0].calls(result=pa.concat_arrays(self._results))
        self._done, self._results = 0, []
        if self._process.own_threads:
            own = pa.array(self._process.own_threads, pa.int32())
            table = table.filter(pc.invert(pc.is_in(table["tid"], own)))
        self._file.write(table)

    def _know_results(self) -> None:
        """The results of the calls whose returns are in the sub-buffers that are being taken."""
        import pyarrow as pa
        import pyarrow.compute as pc

        function, ax, leave = (self._column(name) for name in ("function", "ax", "leave"))
        if not len(function):
            return
        found = pa.nulls(len(function), pa.string())
        for number in pc.unique(function).to_pylist():
            ip = self._calls.functions.key(number)
            is_its = pc.equal(function, pa.scalar(number, pa.int32()))
            here = pc.and_(is_its, pc.not_equal(leave, pa.scalar(0, pa.uint32())))
            found = pc.if_else(here, self._results_of(ip, here, ax, leave), found)
        self._results.append(found)
        self._done = self._calls.rows.count

    def _column(self, name: str) -> Any:
        import pyarrow as pa

        kind = {"function": pa.int32(), "ax": pa.uint64(), "leave": pa.uint32()}[name]
        data = pa.py_buffer(self._calls.arrays[name])
        return pa.Array.from_buffers(kind, self._calls.rows.count, [None, data]).slice(self._done)

    def _results_of(self, ip: int, here: Any, ax: Any, leave: Any) -> Any:
        """The results of the calls of a function, which are those `here`: of most functions ax tells them."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if (kind := self._values.number_result(ip)) is not None:
            return _texts_of_numbers(ax, kind)
        if (text := self._values.result_of_ax(ip)) is None:
            return self._texts(ip, here, leave)
        words, found = pc.if_else(here, ax, _null("uint64")), _null("string")
        if self._values.is_address(ip):
            plain = pc.invert(pc.is_in(words, pa.array((0, _ALL_ONES), pa.uint64())))
            found = pc.if_else(plain, texts_of_addresses(ax), found)
            words = pc.if_else(plain, _null("uint64"), words)
        found = pc.coalesce(found, _texts_of_words(words, text))
        missing = pc.and_(here, pc.is_null(found))
        if missing.true_count:
            found = pc.coalesce(found, self._texts(ip, missing, leave))
        return pc.if_else(pc.equal(found, pa.scalar("", pa.string())), _null("string"), found)

    def _texts(self, ip: int, here: Any, leave: Any) -> Any:
        """The same, each from the record of its return."""
        import pyarrow as pa

        chosen = zip(here.to_pylist(), leave.to_pylist(), strict=True)
        return pa.array([self._text(ip, index - 1) if is_it else None for is_it, index in chosen], pa.string())

    def _text(self, ip: int, index: int) -> str | None:
        event = event_of(0, self._calls.record(index))
        return self._values.result(ip, event.value, event.values)[0] or None


def _texts_of_numbers(words: Any, kind: Integer) -> Any:
    """Registers as the numbers that are in their lower bits."""
    import pyarrow as pa
    import pyarrow.compute as pc

    name = f"int{kind.bits}"
    low = pc.bit_wise_and(words, pa.scalar((1 << kind.bits) - 1, pa.uint64())).cast(f"u{name}")
    return (low if kind.signed is False else low.view(name)).cast(pa.string())


def _null(kind: str) -> Any:
    """With its type, which pyarrow would look for in the packages that it knows."""
    import pyarrow as pa

    return pa.scalar(None, kind)


def _texts_of_words(words: Any, text: Callable[[int], str | None]) -> Any:
    """The texts of registers, which mostly have few values; null for None, and where `words` is null."""
    import pyarrow as pa

    encoded = words.dictionary_encode()
    found = pa.array([text(word) for word in encoded.dictionary.to_pylist()], pa.string())
    return found.take(encoded.indices)


class _Joined(NamedTuple):
    """Consecutive sub-buffers together, the size of each, and how many records are missing before each."""

    data: bytearray
    size: int
    lost: list[int]


def _joined(pages: Iterable[Taken]) -> Iterator[_Joined]:
    some = _Joined(bytearray(), 0, [])
    for page in pages:
        data, lost = some.data, some.lost
        data += page.data
        some = _Joined(data, len(page.data), [*lost, page.lost])
        if len(data) >= _TAKEN:
            yield some
            some = _Joined(bytearray(), 0, [])
    if some.data:
        yield some


def _known(comm: str) -> str | None:
    return None if comm == UNKNOWN_COMM else comm
