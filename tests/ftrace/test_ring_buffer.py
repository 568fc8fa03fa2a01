"""The ring buffer (TE-2.8, TE-4): native handlers record, readers in Python and a decoder of the tests' own read it back."""

from __future__ import annotations

import itertools
import struct
from typing import Any

from isolation import isolated
from kernel_pages import decode
from recording_native import TYPE, in_thread, program, record_pair, recorded

FIELDS = struct.Struct("<HBBiQQQ")


def fields(data: bytes) -> Any:
    """type, flags, preempt_count, pid, ip, first, second."""
    return FIELDS.unpack(data)


def seconds(records: Any) -> list[int]:
    """The second argument of each record."""
    return [fields(record.data)[6] for record in records]


@isolated
def test_a_native_handler_records_and_a_reader_merges_the_threads_by_time() -> None:
    from ftrace.ring_buffer.buffer import Buffer

    module, buffer = program(), Buffer()
    with recorded(buffer):
        for number in range(3):
            in_thread(lambda number=number: module["work"](10 * number, number))
            module["work"](7, 100 + number)
    found = list(buffer.records())
    assert seconds(found) == [0, 100, 1, 101, 2, 102]
    assert [fields(record.data)[5] for record in found] == [0, 7, 10, 7, 20, 7]
    assert [record.stamp for record in found] == sorted(record.stamp for record in found)
    assert {fields(record.data)[0] for record in found} == {TYPE}
    assert len({record.common.pid for record in found}) == 4
    assert {record.slot for record in found} == {0, 1}
    assert found == list(buffer.records())


@isolated
def test_pages_are_the_kernels() -> None:
    """TE-2.8: another decoder finds the same events at the same times in trace_pipe_raw."""
    from ftrace.ring_buffer.buffer import Buffer

    module, buffer = program(), Buffer()
    with recorded(buffer):
        for number in range(1000):
            module["work"](number, number)
    found = [(record.stamp, record.data) for record in buffer.records()]
    raw = [page for _, page in buffer.raw_pages()]
    assert {len(page) for page in raw} == {4096}
    assert len(raw) > 5
    decoded = [decode(page) for page in raw]
    assert [event for page in decoded for event in page.events] == found
    assert [page.lost for page in decoded] == [None] * len(raw)
    assert list(buffer.raw_pages()) == []


@isolated
def test_a_full_slot_loses_its_oldest_and_says_how_many() -> None:
    from ftrace.ring_buffer.buffer import Buffer

    module, buffer, calls = program(), Buffer(size_kb=8), 1000
    with recorded(buffer):
        for number in range(calls):
            module["work"](number, number)
    held = seconds(buffer.records())
    assert held == list(range(calls - len(held), calls))
    found = list(buffer.consume())
    assert seconds(found) == held
    assert [record.lost for record in found] == [calls - len(held)] + [0] * (len(held) - 1)
    assert list(buffer.consume()) == list(buffer.records()) == []


@isolated
def test_what_was_consumed_is_gone_and_what_was_not_stays() -> None:
    from ftrace.ring_buffer.buffer import Buffer

    module, buffer = program(), Buffer()
    with recorded(buffer):
        for number in range(300):
            module["work"](number, number)
        consumed = list(itertools.islice(buffer.consume(), 150))
        module["work"](0, 300)
    assert seconds(consumed) == list(range(150))
    rest = seconds(buffer.records())
    assert rest == list(range(150, 301))
    raw = [event for _, page in buffer.raw_pages() for event in decode(page).events]
    assert [fields(data)[6] for _, data in raw] == rest


def test_the_handler_is_plain_machine_code_that_calls_only_the_slow_path() -> None:
    from ftrace.native_link import HandlerCode
    from sandbox.native.verify import verify_object

    assert verify_object(HandlerCode(record_pair, "entry").verified_object(), {"ring_reserve", "ring_publish"}) == []
