"""The rows of compiling: a native handler of twenty lines, and the start of the runtime, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from functools import partial

from benchmarks.measure import Row, Sample

_HANDLERS = 6
_HANDLER = """
import os, sys, time
from pathlib import Path
from fprobe.handlers.roles import ENTRY
from ftrace.core.handlers.resolve import native
from ftrace.core.runtime import runtime

runtime()
os.environ["FPROBE_CACHE_DIR"] = sys.argv[1]
def define(number):
    lines = "".join(f"    if regs.dx > {n}:\\n        seen[{n}] += {number}\\n" for n in range(10))
    text = "import fprobe\\nfrom sandbox.native import i32, u64\\nseen = fprobe.Array(u64, 16)\\n"
    text += "@fprobe.native\\ndef handler(fp, ip, ret_ip, regs, data) -> i32:\\n" + lines + "    return 0\\n"
    path = Path(sys.argv[1], f"handler{number}.py")
    path.write_text(text)
    space = {"__name__": f"handler{number}"}
    start = time.process_time_ns()
    exec(compile(text, str(path), "exec"), space)
    native(space["handler"], ENTRY)
    return time.process_time_ns() - start, space

taken = [define(number) for number in range(int(sys.argv[2]))]
print(*(nanoseconds for nanoseconds, _ in taken))
"""
_START = """
import time
start = time.process_time_ns()
from ftrace.core.runtime import runtime
runtime()
print(time.process_time_ns() - start)
"""


def _child(code: str, *arguments: str, cache: str | None = None) -> list[float]:
    """What a fresh interpreter prints, nanoseconds of CPU time, with the bytecode of all modules written down before.

    `cache`: a directory for the object cache.
    """
    environment = {**os.environ, **({"FPROBE_CACHE_DIR": cache} if cache else {})}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return [float(word) for word in done.stdout.split()]


def _handlers(cached: bool) -> Sample:
    """`first_ms`: the first handler of a process; `later_ms`: the median of those after it."""
    with tempfile.TemporaryDirectory() as directory:
        if cached:
            _child(_HANDLER, directory, str(_HANDLERS))
        first, *later = _child(_HANDLER, directory, str(_HANDLERS))
    middle = sorted(later)[len(later) // 2]
    return Sample(0.0, middle, 0, 0, extra={"first_ms": first / 1e6, "later_ms": middle / 1e6})


def _start(cached: bool) -> Sample:
    with tempfile.TemporaryDirectory() as directory:
        if cached:
            _child(_START, cache=directory)
        (taken,) = _child(_START, cache=directory)
    return Sample(0.0, taken, 0, 0, extra={"start_ms": taken / 1e6})


def rows() -> list[Row]:
    """CPU time, in fresh processes."""
    return [
        Row("handler.compile", "a handler of 20 lines, compiled", partial(_handlers, False), rounds=2),
        Row("handler.cached", "... from the cache", partial(_handlers, True), rounds=2),
        Row("runtime.start", "the runtime, from the cache", partial(_start, True), rounds=2),
        Row("runtime.compile", "... compiled", partial(_start, False), rounds=1),
    ]
