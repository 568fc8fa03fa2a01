"""The rows of functions of libraries, which have no stubs."""

from __future__ import annotations

import ctypes
import gc
import mmap
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import fprobe
from benchmarks import program
from benchmarks.measure import Row, Sample
from benchmarks.probes import Attach, both_native, entry_native
from fprobe import Attachment
from ftrace.core.runtime import runtime

TARGET = "libc:labs"
"""A function of three instructions. Python handlers are not for the C library: they are measured on another."""
_PYTHON_TARGET = "libz:zlibVersion"
_LARGE, _SMALL = "libcrypto.so.3", "libz.so.1"
_MANY = 10_000
"""Functions of the large program from which on the large library is attached to."""


def address_of(target: str) -> int:
    """The address of `libc:NAME` or `libz:NAME`."""
    library, _, name = target.partition(":")
    loaded = ctypes.CDLL({"libc": "libc.so.6", "libz": "libz.so.1"}[library])
    return ctypes.cast(getattr(loaded, name), ctypes.c_void_p).value or 0


def _sample(target: str, attach: Attach, calls: int) -> Sample:
    run = program.timed(partial(program.program()["loop"], calls, address_of(target)), calls)
    baseline = run()
    with attach(target) as probe:
        probed = run()
        return Sample(baseline, probed, calls, probe.hits, probe.counts.missed)


def _both_python(target: str) -> Attachment[None]:
    def handler(*_: object) -> None:
        pass

    return fprobe.attach(target, entry=handler, exit=handler)


def _timed_ms(action: Callable[[], object]) -> float:
    start = time.process_time_ns()
    action()
    return (time.process_time_ns() - start) / 1e6


def _memory() -> tuple[int, int]:
    """Bytes of this process: resident, of shared pages its share (Pss), and mapped."""
    gc.collect()
    rollup = Path("/proc/self/smaps_rollup").read_text()
    share = next(line for line in rollup.splitlines() if line.startswith("Pss:"))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return int(share.split()[1]) << 10, pages * mmap.PAGESIZE


def _sample_attach(library: str) -> Sample:
    """All functions of a library: the first time in this process, and again. Milliseconds of CPU time.

    Also the memory that the first time takes for each function, in bytes: resident and mapped. The runtime's is not included.
    """
    ctypes.CDLL(library)
    attachment = both_native(f"{library}:*")
    started = _timed_ms(runtime)
    before = _memory()
    first = started + _timed_ms(attachment.attach)
    functions = len(attachment.targets)
    resident, mapped = (now - then for now, then in zip(_memory(), before, strict=True))
    attachment.detach()
    again = _timed_ms(attachment.attach)
    attachment.detach()
    figures = {"first_ms": first, "again_ms": again, "functions": float(functions)}
    figures |= {"site_bytes": resident / functions, "site_mapped_bytes": mapped / functions}
    return Sample(0.0, first * 1e6, 0, 0, extra=figures)


def rows(calls: int, functions: int) -> list[Row]:
    """The rows of this group. `functions`: of the large program."""
    few = max(calls // 100, 10)
    large = _LARGE if functions >= _MANY else _SMALL
    return [
        Row("library.entry.native", f"handler at the entry of {TARGET}", partial(_sample, TARGET, entry_native, calls)),
        Row("library.both.native", "handlers at both ends", partial(_sample, TARGET, both_native, calls)),
        Row(
            "library.both.python",
            f"... in Python, on {_PYTHON_TARGET}",
            partial(_sample, _PYTHON_TARGET, _both_python, few),
        ),
        Row("attach.library", f"all of {large}, both ends, in CPU time", partial(_sample_attach, large), rounds=1),
    ]
