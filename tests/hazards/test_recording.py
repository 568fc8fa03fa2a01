"""HAZARDS 2, 3, 10 for the ring buffer: death, fork, nested signals, jumps out of them, threads that come and go, a full pool."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from isolation import isolated
from recorder import FIRST, Recorder, numbers, opened


def killed(recorder: Recorder, delay: float) -> tuple[Any, list[int], list[int]]:
    """A child that was killed while four threads recorded: its memory file, and their counts before and after its last event."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        from ftrace.ring_buffer.arena import arena

        recorder.start(4)
        while not all(map(recorder.count, range(4))):
            time.sleep(0.001)
        os.write(send, arena().descriptor.to_bytes(4, "little"))
        time.sleep(20)
        os._exit(1)
    os.close(send)
    file = opened(child, int.from_bytes(os.read(receive, 4), "little"))
    os.close(receive)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return file, [recorder.count(number) for number in range(4)]


def records_of(file: Any) -> Any:
    from ftrace.ring_buffer.reader import of_slot
    from ftrace.ring_buffer.view import RingView

    for entry in file.rings():
        view = RingView(file, entry.number, entry.order)
        for slot in view.slots():
            yield from of_slot(slot, view.pages(slot))


def check_kills(times: int) -> None:
    """After each death every thread's events are a contiguous row that ends at its count, or one above."""
    recorder = Recorder(size_kb=random.choice([8, 64, 1408]))
    for _ in range(times):
        for number in range(4):
            recorder.done[number * 8 : number * 8 + 8] = bytes(8)
        file, counts = killed(recorder, random.random() / 50)
        found: dict[int, list[int]] = {number: [] for number in range(4)}
        for thread, number in numbers(records_of(file)):
            found[thread].append(number)
        for thread, row in found.items():
            assert row == list(range(row[0], row[0] + len(row)))
            assert row[-1] in (counts[thread], counts[thread] + 1), (row[-1], counts[thread])
            assert len(row) == row[-1] or len(row) > 100


@pytest.mark.stress
@isolated(timeout=100)
def test_after_kill_9_another_process_reads_every_committed_event_and_none_is_torn() -> None:
    check_kills(3)


@pytest.mark.stress
@pytest.mark.timeout(320)
@pytest.mark.parametrize("forty", range(5))
@isolated(timeout=300)
def test_after_200_kills_another_process_reads_every_committed_event(forty: int) -> None:
    check_kills(40)


@isolated(timeout=60)
def test_the_child_of_a_fork_records_into_a_memory_file_of_its_own() -> None:
    recorder = Recorder()
    recorder.start(1, 100)[0].join()
    child = os.fork()
    if child == 0:
        assert numbers(recorder.buffer.records()) == []
        recorder.start(1, 50)[0].join()
        assert [number for _, number in numbers(recorder.buffer.records())] == list(range(1, 51))
        recorder.buffer.snapshot()
        recorder.buffer.close()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    recorder.start(1, 10)[0].join()
    assert [number for _, number in numbers(recorder.buffer.records())] == [*range(1, 101), *range(1, 11)]


@isolated(timeout=60)
def test_a_child_that_forks_in_c_records_nothing_into_its_parents_pages() -> None:
    import ctypes

    recorder = Recorder()
    recorder.start(1, 100)[0].join()
    libc = ctypes.PyDLL(None)
    child = libc.fork()
    if child == 0:
        recorder.driver["record"](5 * FIRST, 50, None)
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert {thread for thread, _ in numbers(recorder.buffer.records())} == {0}


def check_threads(at_a_time: int, batches: int) -> None:
    """Ten rounds of threads that come and go, ten events each."""
    recorder = Recorder()
    memory = []
    for _ in range(10):
        for _ in range(batches):
            threads = [recorder.start(1, 10)[0] for _ in range(at_a_time)]
            for thread in threads:
                thread.join()
        memory.append(blocks(recorder))
        found = Counter(numbers(recorder.buffer.consume()))
        assert found == {(0, number): at_a_time * batches for number in range(1, 11)}
    assert max(memory) <= 64 << 20
    assert max(memory[5:]) <= max(memory[:5]) * 1.5
    assert recorder.attachment.counts.missed == 0


@pytest.mark.stress
@isolated(timeout=100)
def test_a_thousand_threads_lose_nothing_and_memory_stays_flat() -> None:
    check_threads(50, 2)


@pytest.mark.stress
@isolated(timeout=100)
def test_ten_thousand_threads_lose_nothing_and_memory_stays_flat() -> None:
    check_threads(50, 20)


def blocks(recorder: Recorder) -> int:
    """Bytes of memory that the memory file takes."""
    from ftrace.ring_buffer.arena import arena

    return os.fstat(arena().descriptor).st_blocks * 512


@pytest.mark.stress
@isolated(timeout=60, FPROBE_BUFFER_POOL_KB="512")
def test_without_a_free_page_a_thread_overwrites_only_its_own_and_drops_what_it_has_no_page_for() -> None:
    from ftrace.ring_buffer.arena import arena

    assert arena().pool_kb == 512
    recorder = Recorder(size_kb=512)
    recorder.driver["record"](0, 20_000, None)  # this thread takes all pages, and keeps them while it lives
    for thread in recorder.start(2, 1000):
        thread.join()
    found = numbers(recorder.buffer.records())
    slots = recorder.buffer.slots()
    stats = [recorder.buffer.stats(slot) for slot in slots]
    hits = recorder.attachment.hits
    assert hits == 22_000
    assert len(found) + recorder.buffer.lost() == hits
    assert sum(each.dropped for each in stats) == 2000
    assert len(found) > 10_000


@isolated(timeout=100)
def test_a_storm_of_signals_under_a_live_reader_loses_nothing_uncounted() -> None:
    """Nested records, page switches and overwriting, while a reader consumes: written = read + overrun + dropped."""
    import threading

    recorder = Recorder(size_kb=16)
    done = threading.Event()
    driver = load_storm(recorder)
    handled = driver["handled"]
    found: list[tuple[int, int]] = []
    stamps: list[tuple[int, int]] = []

    def read() -> None:
        while True:
            last = done.is_set()
            for record in recorder.buffer.consume():
                stamps.append((record.slot, record.stamp))
                found.extend(numbers([record]))
            if last:
                return

    thread = threading.Thread(target=read)
    thread.start()
    driver["storm"](400_000)  # the signals go to the main thread
    done.set()
    thread.join()
    assert handled() > 300
    slots = recorder.buffer.slots()
    stats = [recorder.buffer.stats(slot) for slot in slots]
    hits = recorder.attachment.hits
    assert len(found) + recorder.buffer.lost() == hits
    assert sum(each.read for each in stats) == len(found)
    outer = [number for kind, number in found if kind == 0]
    assert outer == sorted(outer)
    assert {kind for kind, _ in found} == {0, 1}
    assert all(a <= b for a, b in itertools.pairwise(stamps))


STORM = r"""
#include <signal.h>
#include <sys/time.h>
typedef unsigned long u64;
static long (*work)(u64, u64);
static volatile u64 nested;
static void call(u64 x) { work(x, x * 0x9E3779B97F4A7C15ul); }
static void every(long us) {
    struct itimerval interval = { { 0, us }, { 0, us } };
    setitimer(ITIMER_REAL, &interval, 0);
}
static void on_alarm(int s) {
    if (++nested == 20000) every(0); /* on a busy machine there is time for little else */
    call((1ul << 32) + nested);
}
void prepare(void *f) { work = f; }
u64 handled(void) { return nested; }
/* The last two records, one of each kind, are overwritten by none. */
void storm(u64 calls) {
    struct sigaction sa = { .sa_handler = on_alarm, .sa_flags = SA_NODEFER | SA_RESTART };
    sigaction(SIGALRM, &sa, 0);
    every(20);
    for (u64 i = 1; i < calls || nested < 300; i++) call(i);
    every(0);
    raise(SIGALRM);
    call(1ul << 31);
}
"""


def load_storm(recorder: Recorder) -> Any:
    from programs import load_c

    driver = load_c(STORM)
    driver["prepare"](recorder.module["work"])
    return driver


@isolated
def test_a_buffer_that_several_threads_close_and_use() -> None:
    """HAZARDS 10. Whatever ran after the close took rings, or went to the buffer that had been given its place."""
    from ftrace.ring_buffer.buffer import Buffer

    errors: list[BaseException] = []

    def attempt(verb: Callable[[], Any], together: threading.Barrier) -> None:
        together.wait()
        try:
            verb()
        except ValueError:
            pass
        except BaseException as error:
            errors.append(error)

    for _ in range(100):
        closed = Buffer("closed")
        verbs = [closed.close, closed.close, closed.clear, closed.snapshot, closed.slots]
        together = threading.Barrier(len(verbs))
        threads = [threading.Thread(target=attempt, args=(verb, together)) for verb in verbs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []
    other = Buffer("other")
    with pytest.raises(ValueError, match="the buffer closed is closed"):
        closed.write(7, b"x")
    closed.tracing_on = False
    assert other.write(7, b"x") and other.written() == 1
