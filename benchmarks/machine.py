"""The machine that the figures are from."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def describe() -> str:
    """CPU, kernel, Python and llvmlite, in one line."""
    import llvmlite

    cpus = len(os.sched_getaffinity(0))
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{_cpu()} ({cpus} CPUs), Linux {platform.release()}, {python}, llvmlite {llvmlite.__version__}"


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
