"""records.columns: rows of Parquet that `fprobe run --trace` writes while a program makes a million calls a second."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import Row, Sample

_RATE = 1_000_000
"""Calls a second."""
_SECONDS = 10
_SOURCE = """
#include <stdlib.h>
#include <time.h>
__attribute__((noipa)) int work(int n) { return n + 1; }
int main(int count, char **words) {
    long calls = atol(words[1]);
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    for (long i = 0; i < calls; i++) {
        work(i);
        if (i % 1000 == 999) {
            at.tv_nsec += 1000000;
            if (at.tv_nsec >= 1000000000) { at.tv_sec++; at.tv_nsec -= 1000000000; }
            clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, 0);
        }
    }
}
"""


def _absent() -> str:
    if importlib.util.find_spec("pyarrow") is None:
        return "the package pyarrow is not installed: pip install 'fprobe[arrow]'"
    return "" if shutil.which("cc") else "there is no C compiler"


def _sample(calls: int) -> Sample:
    """Raises AssertionError if fprobe fails."""
    import pyarrow.parquet

    with tempfile.TemporaryDirectory() as folder:
        program, file = Path(folder, "paced"), Path(folder, "calls.parquet")
        subprocess.run(["cc", "-O1", "-x", "c", "-", "-o", program], input=_SOURCE, text=True, check=True)
        words = ["-m", "fprobe.cli", "run", "--trace", "work", "-o", file, "--", program, str(calls)]
        with subprocess.Popen(
            [sys.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as launcher:
            _, status, used = os.wait4(launcher.pid, 0)
            launcher.returncode = os.waitstatus_to_exitcode(status)
        assert launcher.returncode == 0, f"fprobe run ended with {launcher.returncode}"
        written = pyarrow.parquet.read_metadata(file).num_rows
    figures = {"lost_of_100": 100 * (calls - written) / calls, "memory_mb": used.ru_maxrss / 1024}
    return Sample(0, 0, calls, calls, lost=calls - written, extra=figures)


def rows(calls: int) -> list[Row]:
    """The row of this module; with few calls it runs for a moment only."""
    total = _RATE * _SECONDS if calls >= 100_000 else 10 * calls
    return [
        Row(
            "records.columns",
            f"rows of Parquet written while {total:,} calls are made, {_RATE:,} a second",
            lambda: _sample(total),
            1,
            _absent,
        )
    ]
