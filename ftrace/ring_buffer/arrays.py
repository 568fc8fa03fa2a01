"""Events as numpy arrays: views of copied sub-buffers, without a Python object for each event."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from ftrace.ring_buffer.layout import COMMIT_MASK, DATA_TYPE_MAX, HEADER, TIME_EXTEND
from ftrace.ring_buffer.pages import Event, Page, common

if TYPE_CHECKING:
    import numpy


class Block(NamedTuple):
    """Consecutive events of one type in one slot."""

    slot: int
    stamps: numpy.ndarray[Any, Any]
    """u64, in units of the buffer's clock."""
    events: numpy.ndarray[Any, Any]
    """A structured array with one element for each event: a view of the sub-buffer's copy."""


def blocks(page: Page, slot: int, type_id: int, dtype: Any) -> Iterator[Block]:
    """The events of a type in a sub-buffer, oldest first; consecutive events at equal distances in one array.

    `dtype` describes an event from its common fields on. Raises ModuleNotFoundError without numpy, ValueError for a dtype that
    is longer than an event.
    """
    try:
        import numpy
    except ModuleNotFoundError:
        raise ModuleNotFoundError("arrays of events need numpy: pip install fprobe[arrays]") from None
    layout = numpy.dtype(dtype)
    plain = _uniform(page, type_id, layout)
    if plain is not None:
        yield Block(slot, *plain)
        return
    for run in _runs([event for event in page.events if common(page.data, event.offset).type == type_id]):
        if layout.itemsize > run[0].size:
            raise ValueError(f"the dtype has {layout.itemsize} bytes; an event of type {type_id} has {run[0].size}")
        step = run[1].offset - run[0].offset if len(run) > 1 else run[0].size
        stamps = numpy.array([event.stamp for event in run], numpy.uint64)
        yield Block(slot, stamps, numpy.ndarray(len(run), layout, page.data, run[0].offset, (step,)))


def _uniform(page: Page, type_id: int, layout: Any) -> Any:
    """Stamps and events of a sub-buffer that contains only small events of one length and type; None for another one."""
    import numpy

    used = int.from_bytes(page.data[8:16], "little") & COMMIT_MASK
    first = page.data[HEADER] & 31 if used else 0
    size = 4 + 4 * first
    if page.skip or not 0 < first <= DATA_TYPE_MAX or used % size or layout.itemsize > size - 4:
        return None
    heads = numpy.ndarray(used // size, numpy.uint32, page.data, HEADER, (size,))
    types = numpy.ndarray(used // size, numpy.uint16, page.data, HEADER + 4, (size,))
    if (heads & 31 != first).any() or (types != type_id).any() or first >= TIME_EXTEND:
        return None
    stamps = numpy.cumsum(heads >> 5, dtype=numpy.uint64) + numpy.uint64(int.from_bytes(page.data[:8], "little"))
    return stamps, numpy.ndarray(used // size, layout, page.data, HEADER + 4, (size,))


def _runs(events: list[Event]) -> Iterator[list[Event]]:
    """Split events into runs of one size at equal distances."""
    run: list[Event] = []
    for event in events:
        step = event.offset - run[-1].offset if run else 0
        if run and (event.size != run[0].size or (len(run) > 1 and step != run[1].offset - run[0].offset)):
            yield run
            run = []
        run.append(event)
    if run:
        yield run
