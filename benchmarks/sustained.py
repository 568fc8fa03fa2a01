"""events.sustained: how many events a second two threads may record while a reader drains them to a file on tmpfs."""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import os
import tempfile
import threading
from functools import cache
from pathlib import Path

from benchmarks import program
from benchmarks.events import recording
from benchmarks.measure import Row, Sample
from fprobe import ticks_per_ns
from ftrace import Buffer
from sandbox.native import Unit, addressof, array, cast, fn, native, rdtsc, syscall, u64, zeroed
from sandbox.native.native_image import NativeImage

THREADS = 2
RATES = (40, 35, 30, 27, 24, 21, 18, 15, 10, 5, 2, 1)
"""Million events a second, of all threads together; the first at which nothing is lost is the result."""
SECONDS = 10
BURST = 4000
"""Events between two looks at the clock."""


@native(bounded=False)
def paced(target: u64, calls: u64, pause_ticks: u64, burst: u64) -> u64:
    """Call `target` in bursts that begin at a set pace; how many ticks it took."""
    function = cast(fn[u64, u64], target)
    moment: array[u64, 2] = zeroed
    moment[1] = 50_000
    start = rdtsc()
    done: u64 = 0
    while done < calls:
        while rdtsc() - start < done * pause_ticks // burst:
            syscall(35, addressof(moment[0]), 0)  # nanosleep: the reader has no CPU of its own
        for index in range(burst):
            function(done + index)
        done += burst
    return rdtsc() - start


@cache
def _image() -> NativeImage:
    return NativeImage.of(Unit("sustained", [paced], bounded=False))


class _Run:
    """Two threads at a pace, and a reader."""

    def __init__(self, rate: int, seconds: float) -> None:
        self.calls = int(rate * 1e6 * seconds / THREADS) // BURST * BURST
        self._pause = int(ticks_per_ns() * 1e9 * BURST / (rate * 1e6 / THREADS))
        self.ticks: list[int] = []

    def record(self) -> tuple[int, int]:
        """Events that were recorded and that were lost."""
        program.program()
        buffer = Buffer(size_kb=28 << 10)
        try:
            with recording(buffer, "work"), tempfile.TemporaryFile(dir=_directory()) as file:
                threads = [threading.Thread(target=self._drive) for _ in range(THREADS)]
                for thread in threads:
                    thread.start()
                while any(thread.is_alive() for thread in threads):
                    self._drain(buffer, file.fileno())
                self._drain(buffer, file.fileno())
            stats = [buffer.stats(slot) for slot in buffer.slots()]
            return self.calls * THREADS, sum(each.overrun + each.dropped + each.commit_overrun for each in stats)
        finally:
            buffer.close()

    def _drive(self) -> None:
        target = program.program()["work"].address
        self.ticks.append(_image().call_and_wait("paced", target, self.calls, self._pause, BURST))

    def _drain(self, buffer: Buffer, descriptor: int) -> None:
        """The file keeps its first bytes only: gigabytes are written."""
        if buffer.drain(descriptor) == 0:
            threading.Event().wait(0.0005)
        os.lseek(descriptor, 0, os.SEEK_SET)

    @property
    def per_second(self) -> float:
        """Million events a second that the slower thread kept up."""
        return self.calls * THREADS * ticks_per_ns() * 1e3 / max(self.ticks)


def _directory() -> str:
    return "/dev/shm" if Path("/dev/shm").is_dir() else tempfile.gettempdir()


def _sustained(seconds: float) -> Sample:
    for rate in RATES:
        run = _Run(rate, seconds)
        recorded, lost = run.record()
        if lost == 0:
            break
    return Sample(0.0, 1e3 / run.per_second, recorded, recorded, 0, lost, {"million_per_s": run.per_second})


def rows(calls: int) -> list[Row]:
    """The row of this module; with few calls it runs for a moment only."""
    seconds = SECONDS if calls >= 100_000 else 0.01
    return [
        Row(
            "events.sustained",
            "events that two threads record and a reader drains",
            lambda: _sustained(seconds),
            rounds=1,
        )
    ]
