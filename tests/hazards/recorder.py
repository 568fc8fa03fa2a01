"""A process that records numbered events from several threads, to be killed, forked and interrupted."""

# ruff: noqa: E402  (it is found by a program, too)

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent.parent), str(Path(__file__).parent.parent / "ftrace" / "ring_buffer")]

from recording_native import program, recorded

MULTIPLIER = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1
FIRST = 1 << 32
"""Of the numbers that thread t records: t * FIRST + 1, and so on."""
DRIVER = r"""
typedef unsigned long u64;
static long (*work)(u64, u64);
void prepare(void *f) { work = f; }
void record(u64 first, u64 calls, volatile u64 *done) {
    for (u64 i = 1; calls == 0 || i <= calls; i++) { u64 x = first + i; work(x, x * 0x9E3779B97F4A7C15ul); if (done) *done = i; }
}
"""


class Recorder:
    """A buffer, a probed function, and a loop in C that calls it."""

    def __init__(self, **settings: Any) -> None:
        from programs import load_c

        from ftrace.ring_buffer.buffer import Buffer

        self.buffer = Buffer(**settings)
        self.module = program()
        self.attachment = recorded(self.buffer).attach()
        self.driver = load_c(DRIVER)
        self.driver["prepare"](self.module["work"])
        self.done = mmap.mmap(-1, 4096)
        self._counts = (ctypes.c_uint64 * 512).from_buffer(self.done)

    def start(self, threads: int, calls: int = 0) -> list[threading.Thread]:
        """Threads that record, each `calls` events, or for ever."""
        started = [
            threading.Thread(target=self._record, args=(number, calls), daemon=True) for number in range(threads)
        ]
        for thread in started:
            thread.start()
        return started

    def _record(self, number: int, calls: int) -> None:
        self.driver["record"](number * FIRST, calls, ctypes.addressof(self._counts) + number * 8)

    def count(self, number: int) -> int:
        """How many events a thread has recorded, as it says itself after each."""
        return int.from_bytes(self.done[number * 8 : number * 8 + 8], sys.byteorder)


def numbers(records: Any) -> list[tuple[int, int]]:
    """Thread and number of each record. Raises AssertionError for one that is torn."""
    found = []
    for record in records:
        first, second = (int.from_bytes(record.data[at : at + 8], "little") for at in (16, 24))
        assert second == first * MULTIPLIER & MASK and len(record.data) == 32, f"torn: {record}"
        found.append((first // FIRST, first % FIRST))
    return found


def opened(pid: int, descriptor: int) -> Any:
    """The memory file of another process, mapped."""
    from ftrace.ring_buffer.view import MemoryFile

    fd = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDONLY)
    try:
        return MemoryFile(memoryview(mmap.mmap(fd, 0, prot=mmap.PROT_READ)))
    finally:
        os.close(fd)
