"""What `fprobe run` adds to the start of a program, and probes to a fork."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zlib
from collections.abc import Sequence
from functools import partial

import fprobe
from benchmarks.measure import Row, Sample

_PYTHON = ("-c", "import zlib; zlib.compress(b'x')")
_MACHINE_CODE = ("/bin/true",)
_ROUNDS = 7
_FORKS = 50


def rows() -> list[Row]:
    """The rows."""
    probes, malloc = (("--stat", pattern, "-o", os.devnull) for pattern in ("libz:*", "libc:malloc"))
    return [
        Row("run.start", "fprobe run, nothing asked for, less python alone", partial(_sample, (), _PYTHON), _ROUNDS),
        Row(
            "run.start.probed", "fprobe run --stat 'libz:*', less the same", partial(_sample, probes, _PYTHON), _ROUNDS
        ),
        Row(
            "run.start.native",
            "fprobe run --stat libc:malloc /bin/true",
            partial(_sample, malloc, _MACHINE_CODE),
            _ROUNDS,
        ),
        Row("fork", "os.fork, and the end of the child, with probes on libz, less without", _forks, _ROUNDS),
    ]


def _sample(options: Sequence[str], program: Sequence[str]) -> Sample:
    alone = _seconds([sys.executable, *program] if program == _PYTHON else program)
    launched = _seconds([sys.executable, "-m", "fprobe.cli", "run", *options, *program])
    return Sample(alone * 1e9, launched * 1e9, 1, 1, extra={"added_ms": (launched - alone) * 1e3})


def _forks() -> Sample:
    alone = _ns_a_fork()
    with fprobe.attach("libz:*", action=fprobe.Count()):
        probed = _ns_a_fork()
    return Sample(alone, probed, 0, 0, extra={"added_us": (probed - alone) / 1e3})


def _ns_a_fork() -> float:
    start = time.perf_counter_ns()
    for _ in range(_FORKS):
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
    return (time.perf_counter_ns() - start) / _FORKS


assert zlib  # the library that is probed


def _seconds(command: Sequence[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""})
    return time.perf_counter() - start
