"""Events as numpy arrays."""

from __future__ import annotations

import itertools
import time

import pytest
from isolation import isolated
from later import later
from test_ring_buffer import called, seconds

DTYPE = [("common", "<u8"), ("ip", "<u8"), ("first", "<u8"), ("second", "<u8")]

later("numpy")


@isolated
def test_arrays_are_views_and_hold_what_the_records_do() -> None:
    import numpy
    from recording_native import TYPE

    from ftrace.ring_buffer.buffer import Buffer

    buffer = Buffer()
    called(buffer, range(300))
    time.sleep(0.15)  # an event with a time stamp of its own
    called(buffer, range(300, 600))
    list(itertools.islice(buffer.consume(), 10))
    found, blocks = list(buffer.records()), list(buffer.arrays(TYPE, DTYPE))
    stamps = numpy.concatenate([block.stamps for block in blocks])
    assert stamps.tolist() == [record.stamp for record in found]
    events = numpy.concatenate([block.events for block in blocks])
    assert events["second"].tolist() == seconds(found) == list(range(10, 600))
    assert not any(block.events.flags.owndata for block in blocks)
    assert len(blocks) < 12
    assert list(buffer.arrays(TYPE + 1, DTYPE)) == []


@isolated
def test_a_dtype_longer_than_the_event_is_refused() -> None:
    from recording_native import TYPE

    from ftrace.ring_buffer.buffer import Buffer

    buffer = Buffer()
    called(buffer, range(5))
    with pytest.raises(ValueError, match="the dtype has 40 bytes; an event of type 1315 has 32"):
        list(buffer.arrays(TYPE, [*DTYPE, ("third", "<u8")]))
