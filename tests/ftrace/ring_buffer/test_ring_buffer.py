"""The ring buffer (TE-2.8, TE-4): native handlers record, readers in Python and a decoder of the tests' own read it back."""

from __future__ import annotations

import ctypes
import itertools
import struct
from typing import Any

import pytest
from isolation import isolated
from kernel_pages import decode
from recording_native import TYPE, in_thread, program, record_pair, record_shortened, recorded

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
    assert len({record.slot for record in found}) > 1
    assert found == list(buffer.records())


@isolated
def test_a_record_gives_back_what_it_does_not_need() -> None:
    from ftrace.ring_buffer.buffer import Buffer

    module, buffer = program(), Buffer()
    with recorded(buffer, handler=record_shortened):
        for number, used in enumerate((400, 117, 32, 396, 120)):
            module["work"](used, number)
    found = [data for _, page in buffer.raw_pages() for _, data in decode(page).events]
    assert [len(data) for data in found] == [400, 120, 116, 396, 120]
    assert [FIELDS.unpack_from(data)[6] for data in found] == [0, 1, 2, 3, 4]


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


@isolated
def test_a_thread_that_overwrites_all_during_each_copy_by_python_does_not_keep_the_reader() -> None:
    """As one does that records without a pause."""
    from ftrace.ring_buffer.buffer import Buffer
    from ftrace.ring_buffer.view import RingView

    module, buffer, copy, copies = program(), Buffer(size_kb=8), RingView.copy, itertools.count()

    def overtaken(view: RingView, page: int, skip: int = 0) -> Any:
        assert next(copies) < 10, "the reader goes round and round"
        found = copy(view, page, skip)
        for number in range(1000):
            module["work"](number, number)
        return found

    with recorded(buffer):
        module["work"](0, 0)
        (slot,) = buffer.slots()
        RingView.copy = overtaken  # type: ignore[method-assign]
        taken = [buffer.take_page(slot) for _ in range(10)]
    assert all(page is not None and decode(page).events for page in taken)


def test_the_handler_is_plain_machine_code_that_calls_only_the_slow_path() -> None:
    from ftrace.core.handlers.native_link import HandlerCode
    from sandbox.native.back.verify import verify_object

    assert (
        verify_object(HandlerCode(record_pair, "entry").verified_object(), {"ring_reserve", "ring_stamp", "ring_end"})
        == []
    )


def called(buffer: Any, *rounds: range) -> None:
    """Record a call of work(n, n) for each number."""
    module = program()
    with recorded(buffer):
        for number in itertools.chain(*rounds):
            module["work"](number, number)
    module.unload()


@isolated
def test_lost_counts_the_events_of_every_reason() -> None:
    """Also those that a record in progress cost (commit overrun): a summary must not say that nothing was lost."""
    from ftrace.ring_buffer.buffer import Buffer

    buffer = Buffer(size_kb=8)
    called(buffer, range(1))
    fields = ("overrun", "trimmed", "commit_overrun", "dropped", "nested", "retried", "abandoned", "too_long")
    for number, field in enumerate(fields):
        buffer._live.view.set_slot_word(0, field, 10**number)
    assert buffer.lost() == 11_111_111


@isolated
def test_discard_mode_keeps_the_oldest_counts_what_is_dropped_and_goes_on_when_pages_were_read() -> None:
    from ftrace.ring_buffer.buffer import Buffer

    buffer = Buffer(size_kb=8, overwrite=False)
    called(buffer, range(1000))
    held = seconds(buffer.records())
    assert held == list(range(len(held)))
    assert buffer.stats(0)[:2] == (len(held), 0)
    assert buffer.stats(0).dropped == 1000 - len(held)
    assert seconds(buffer.consume()) == held
    called(buffer, range(2000, 2010))
    found = list(buffer.consume())
    assert seconds(found) == list(range(2000, 2010))
    assert [record.lost for record in found] == [1000 - len(held)] + [0] * 9


@isolated
def test_without_tracing_on_nothing_is_recorded() -> None:
    from ftrace.ring_buffer.buffer import Buffer

    buffer = Buffer()
    called(buffer, range(3))
    buffer.tracing_on = False
    called(buffer, range(3, 6))
    buffer.tracing_on = True
    called(buffer, range(6, 9))
    assert seconds(buffer.records()) == [0, 1, 2, 6, 7, 8]
    assert buffer.stats(0).dropped == 0


@isolated
def test_stats_say_what_the_slot_holds_lost_and_gave() -> None:
    from ftrace.ring_buffer.buffer import Buffer

    buffer = Buffer(size_kb=8)
    called(buffer, range(1000))
    held = list(buffer.records())
    before = buffer.stats(0)
    assert (before.entries, before.overrun, before.read) == (len(held), 1000 - len(held), 0)
    assert before.oldest == held[0].stamp and before.now > held[-1].stamp
    assert before.bytes >= 36 * len(held)
    list(itertools.islice(buffer.consume(), 5))
    after = buffer.stats(0)
    assert (after.entries, after.overrun, after.read) == (len(held) - 5, before.overrun, 5)
    assert after.bytes < before.bytes and after.oldest == held[5].stamp
    buffer.clear()
    assert list(buffer.records()) == [] and buffer.slots() == []
    called(buffer, range(3))
    assert buffer.stats(0)[:4] == (3, 0, 0, buffer.stats(0).bytes)


@isolated
def test_a_smaller_size_keeps_the_newest_and_a_larger_one_holds_more() -> None:
    from ftrace.ring_buffer.buffer import Buffer

    buffer = Buffer(size_kb=64)
    assert (buffer.size_kb, Buffer(size_kb=1).size_kb, Buffer(size_kb=8).size_kb, Buffer().size_kb) == (67, 7, 11, 1410)
    called(buffer, range(1000))
    assert len(list(buffer.records())) == 1000
    buffer.size_kb = 16
    held = seconds(buffer.records())
    assert held == list(range(1000 - len(held), 1000)) and 300 < len(held) < 600
    assert buffer.stats(0).overrun == 1000 - len(held)
    buffer.size_kb = 64
    called(buffer, range(1000, 1100))
    assert seconds(buffer.records()) == [*held, *range(1000, 1100)]
    assert next(buffer.consume()).lost == 1000 - len(held)


@isolated
def test_te4_5_a_slot_keeps_a_size_of_its_own_until_the_size_of_all_is_set() -> None:
    from ftrace.ring_buffer.buffer import Buffer

    buffer = Buffer(size_kb=64)
    called(buffer, range(1))
    slot = buffer.slots()[0]

    def held() -> bool:
        """Whether a slot of that size holds no more than it may: three sub-buffers of records of 36 bytes or more."""
        called(buffer, range(5000))
        return len(list(buffer.records(slot))) <= 3 * 4080 // 36

    buffer.set_slot_size_kb(slot, 8)
    buffer.set_slot_size_kb(200, 16)
    assert held()
    buffer.clear()
    assert (buffer.slot_size_kb(slot), held()) == (11, True)
    buffer.clock = "mono"
    assert held()
    buffer.allocate_snapshot()
    buffer.snapshot()
    assert (buffer.slot_size_kb(slot), held()) == (11, True)
    buffer.subbuf_kb = 16
    assert (buffer.slot_size_kb(slot), buffer.slot_size_kb(200), buffer.size_kb) == (31, 31, 79)
    buffer.size_kb = 32
    assert (buffer.slot_size_kb(slot), buffer.slot_size_kb(200)) == (buffer.size_kb, buffer.size_kb)
    buffer.clear()
    assert not held()


@pytest.mark.stress
@pytest.mark.parametrize(
    "sizes",
    [((1, 4), (4, 4), (5, 8), (300, 512)), pytest.param(((64, 64), (512, 512)), marks=pytest.mark.stress)],
    ids=["some", "others"],
)
@isolated
def test_every_size_of_a_sub_buffer_holds_what_was_written(sizes: tuple[tuple[int, int], ...]) -> None:
    from ftrace.ring_buffer.buffer import Buffer

    buffer = Buffer(size_kb=2048)
    for given, used in sizes:
        buffer.subbuf_kb = given
        assert buffer.subbuf_kb == used
        called(buffer, range(20_000))
        raw = [page for _, page in buffer.raw_pages()]
        assert {len(page) for page in raw} == {used << 10}
        assert [fields(data)[6] for page in raw for _, data in decode(page).events] == list(range(20_000))


@isolated
def test_a_snapshot_has_what_the_buffer_had_and_swaps_back() -> None:
    from ftrace.ring_buffer.buffer import Buffer

    buffer = Buffer()
    called(buffer, range(5))
    buffer.snapshot()
    assert (seconds(buffer.records()), seconds(buffer.snapshot_records())) == ([], [0, 1, 2, 3, 4])
    called(buffer, range(5, 8))
    buffer.tracing_on = False
    buffer.snapshot()
    assert (seconds(buffer.records()), seconds(buffer.snapshot_records())) == ([0, 1, 2, 3, 4], [5, 6, 7])
    buffer.clear_snapshot()
    assert list(buffer.snapshot_records()) == [] and buffer.has_snapshot
    buffer.free_snapshot()
    assert not buffer.has_snapshot
    buffer.tracing_on = True
    called(buffer, range(8, 9))
    assert seconds(buffer.records()) == [0, 1, 2, 3, 4, 8]


@isolated
def test_a_buffer_in_the_place_of_one_that_was_closed_has_no_snapshot() -> None:
    from ftrace.ring_buffer.buffer import Buffer

    used = set()
    while (closed := Buffer()).address not in used:
        used.add(closed.address)
        closed.snapshot()
        closed.close()
    assert not closed.has_snapshot
    called(closed, range(3))
    closed.snapshot()
    called(closed, range(3, 5))
    assert (seconds(closed.records()), seconds(closed.snapshot_records())) == ([3, 4], [0, 1, 2])


@pytest.mark.parametrize("times", [30, pytest.param(100, marks=pytest.mark.stress)])
@isolated
def test_buffers_are_apart_and_give_everything_back(times: int) -> None:
    from ftrace.ring_buffer.arena import arena
    from ftrace.ring_buffer.buffer import Buffer

    words = arena().file.words[arena().file.geometry.bitmap >> 3 :][: arena().file.geometry.words]
    for _ in range(times):
        first, second = Buffer("one"), Buffer("two", clock="counter")
        called(first, range(200))
        called(second, range(3))
        first.snapshot()
        assert {entry.name for entry in arena().file.rings()} == {"one", "two"}
        assert (seconds(first.snapshot_records()), seconds(second.records())) == (list(range(200)), [0, 1, 2])
        stamps = [record.stamp for record in second.records()]
        assert stamps == list(range(stamps[0], stamps[0] + 3))
        first.close()
        second.close()
        assert set(words) == {(1 << 64) - 1}


@isolated
def test_values_out_of_range_are_named() -> None:
    import pytest

    from ftrace.ring_buffer.buffer import Buffer

    buffer = Buffer()
    for name, value in (("size_kb", 0), ("subbuf_kb", 0), ("subbuf_kb", 513), ("clock", "moon")):
        with pytest.raises(ValueError, match=str(value)):
            setattr(buffer, name, value)
    with pytest.raises(OSError, match="size_kb is 65537; the pool of all buffers has 65536"):
        buffer.size_kb = 65537
    with pytest.raises(OSError, match="64 rings exist"):
        buffers = [Buffer() for _ in range(100)]
        assert len(buffers) == 0
    assert buffer.size_kb == 1410


@isolated
def test_draining_writes_complete_pages_and_leaves_the_one_in_use() -> None:
    import tempfile

    from ftrace.ring_buffer.buffer import Buffer

    buffer = Buffer(size_kb=64)
    called(buffer, range(3000))
    held = seconds(buffer.records())
    with tempfile.TemporaryFile() as file:
        written = buffer.drain(file.fileno())
        file.seek(0)
        data = file.read()
    assert written == len(data) > 0
    decoded = [decode(data[at : at + 4096]) for at in range(0, written, 4096)]
    drained = [fields(event)[6] for page in decoded for _, event in page.events]
    assert drained + seconds(buffer.consume()) == held
    assert [page.lost for page in decoded] == [3000 - len(held)] + [None] * (len(decoded) - 1)
    assert buffer.stats(0).read == len(held)


@isolated(timeout=30)
def test_draining_ends_though_threads_record_faster_than_the_file_takes_records() -> None:
    """Else `fprobe record` would not notice Ctrl-C, and would fill the disk."""
    import os
    from unittest import mock

    from ftrace.ring_buffer.buffer import Buffer

    buffer = Buffer(size_kb=64)

    def fill() -> None:
        for _ in range(64):
            buffer.write(1, bytes(3000))

    def write(_: int, data: memoryview) -> int:
        fill()  # meanwhile, another thread has filled the buffer again
        return len(data)

    fill()
    with mock.patch.object(os, "write", write):
        written = buffer.drain(-1)
    assert 0 < written < 128 << 10, written


@isolated(timeout=30)
def test_taking_pages_ends_though_threads_record_faster_than_they_are_taken() -> None:
    from ftrace.ring_buffer.buffer import Buffer

    buffer, taken = Buffer(size_kb=64), 0
    for _ in range(64):
        buffer.write(1, bytes(3000))
    for _ in buffer.raw_pages():
        taken += 1
        buffer.write(1, bytes(3000))
        buffer.write(1, bytes(3000))
    assert 8 <= taken <= 32


@isolated
def test_python_records_events_of_any_length() -> None:
    import pytest

    from ftrace.ring_buffer.buffer import Buffer

    buffer = Buffer(size_kb=64)
    lengths = [0, 1, 3, 4, 8, 100, 104, 105, 108, 109, 500, 4064]
    for length in lengths:
        assert buffer.write(length + 20, bytes([length % 251]) * length)
    found = list(buffer.records())
    assert [record.common.type for record in found] == [length + 20 for length in lengths]
    for length, record in zip(lengths, found, strict=True):
        assert record.data[8 : 8 + length] == bytes([length % 251]) * length
        assert len(record.data) == max(12, (8 + length + 3) // 4 * 4)
    raw = [event for _, page in buffer.raw_pages() for event in decode(page).events]
    assert raw == [(record.stamp, record.data) for record in found]
    with pytest.raises(ValueError, match="the event has 4065 bytes; 4064 fit a sub-buffer of 4 KiB"):
        buffer.write(5, bytes(4065))
    with pytest.raises(ValueError, match="type_id is 65536; it must be between 0 and 65535"):
        buffer.write(65536, b"")
    buffer.tracing_on = False
    assert not buffer.write(5, b"")


@isolated
def test_snapshots_that_threads_take_while_others_record_and_clear_lose_no_ring() -> None:
    import threading

    from ftrace.core.runtime import runtime
    from ftrace.ring_buffer.arena import arena
    from ftrace.ring_buffer.buffer import Buffer

    buffer, stop = Buffer(size_kb=16), threading.Event()
    buffer.allocate_snapshot()

    def swap() -> None:
        while not stop.is_set():
            runtime().image.call_and_wait("ring_swap", buffer.address)

    def write() -> None:
        while not stop.is_set():
            buffer.write(20, b"12345678")

    threads = [threading.Thread(target=each) for each in (swap, write)]
    for thread in threads:
        thread.start()
    for number in range(100):
        buffer.clear_snapshot() if number % 2 else buffer.clear()
        buffer.tracing_on = bool(number % 3)
        list(buffer.records())
        list(buffer.snapshot_records())
    stop.set()
    for thread in threads:
        thread.join()
    assert len(arena().file.rings()) == 2
    buffer.close()
    assert arena().file.rings() == []


@isolated
def test_a_record_abandoned_while_the_next_page_is_linked_counts_no_other_records() -> None:
    """The slot names the new page, but its sequence and its tail are still those of the full one."""
    from ftrace.hit.ring_buffer.records import PAGE_MASK, Ring, Slot
    from ftrace.ring_buffer.buffer import Buffer

    module, buffer = program(), Buffer()
    ring = Ring.ctypes.from_address(buffer._live.address)
    with recorded(buffer):
        module["work"](0, 0)
        slots = (Slot.ctypes.from_address(buffer._live.slot_address(number)) for number in range(2048))
        slot = next(slot for slot in slots if slot.sequence == 1)
        full = slot.tail
        for number in itertools.count(1):
            module["work"](number, number)
            if slot.sequence == 2:
                break
            full = slot.tail
        slot.commit_page = slot.head & PAGE_MASK
        slot.commit_sequence = slot.sequence = 1
        slot.tail = full
        slot.writer = ctypes.addressof(ring)  # no record: it does not hold the slot's token
        module["work"](7, 7)
    assert slot.abandoned == 0
    assert seconds(buffer.records()) == [*range(number), 7]


@isolated
def test_a_record_publishes_what_others_left_unpublished() -> None:
    """As after a publication that records of signal handlers interrupted again and again, on two pages."""
    from ftrace.hit.ring_buffer.records import PAGE_MASK, Slot
    from ftrace.ring_buffer.buffer import Buffer

    module, buffer = program(), Buffer()
    with recorded(buffer):
        module["work"](0, 0)
        slots = (Slot.ctypes.from_address(buffer._live.slot_address(number)) for number in range(2048))
        slot = next(slot for slot in slots if slot.sequence == 1)
        for number in itertools.count(1):
            module["work"](number, number)
            if slot.sequence == 2:
                break
        slot.commit_page = slot.head & PAGE_MASK
        slot.commit_sequence = 1
        slot.last_stamp = 0
        module["work"](7, 7)
    assert slot.commit_sequence == 2
    assert seconds(buffer.records()) == [*range(number + 1), 7]
