"""What `fprobe run` adds to the start of a program: without probes, and with probes on libz."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.measure import Row, Sample

_PROGRAM = ("-c", "import zlib; zlib.compress(b'x')")
_ROUNDS = 7


def rows() -> list[Row]:
    """The rows."""
    probes = ("--stat", "libz:*", "-o", os.devnull)
    return [
        Row("run.start", "fprobe run, nothing asked for, less python alone", lambda: _sample(()), _ROUNDS),
        Row("run.start.probed", "fprobe run --stat 'libz:*', less python alone", lambda: _sample(probes), _ROUNDS),
    ]


def _sample(options: Sequence[str]) -> Sample:
    alone = _seconds([sys.executable, *_PROGRAM])
    launched = _seconds([sys.executable, "-m", "fprobe.cli", "run", *options, *_PROGRAM])
    return Sample(alone * 1e9, launched * 1e9, 1, 1, extra={"added_ms": (launched - alone) * 1e3})


def _seconds(command: Sequence[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""})
    return time.perf_counter() - start
