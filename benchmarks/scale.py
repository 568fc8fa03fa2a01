"""The rows about many functions: attaching to all of them, running all of them, being one of them."""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Callable
from functools import cache, partial

import fprobe
import sandbox
from benchmarks import probes, program
from benchmarks.handlers import nothing
from benchmarks.measure import Row, Sample
from fprobe import Attachment
from sandbox import Module
from tests.program_generator import FlatProgram, generate_flat

_JUMP, _NOP = 0xE9, 0x0F
_EVICTED = 1 << 26
"""Bytes written to have the caches forget the program."""


class SiteError(AssertionError):
    """A site does not hold what it should after a registration or its end."""


class FlatModule:
    """A program of `size` functions, loaded."""

    def __init__(self, size: int) -> None:
        self.program: FlatProgram = generate_flat(size)
        self.module: Module = sandbox.load(self.program.ir, name=f"flat{size}", opt=0)
        self._junk = ctypes.create_string_buffer(_EVICTED)
        self.sweep()

    def check_sites(self, first_byte: int) -> None:
        """Raise SiteError unless every stub begins with this byte, read where the CPU would execute it."""
        for text in self.module.texts:
            code = ctypes.string_at(text.base, text.size)
            wrong = [site for site in self.module.sites if site in text and code[site - text.base] != first_byte]
            if wrong:
                raise SiteError(f"{len(wrong)} stubs do not begin with {first_byte:#x}, the first at {wrong[0]:#x}")

    def sweep(self) -> float:
        """Nanoseconds for each function when all are called once, from cold caches."""
        ctypes.memset(self._junk, 1, _EVICTED)
        start = time.perf_counter_ns()
        result = self.module[self.program.entry](7)
        taken = time.perf_counter_ns() - start
        if result % (1 << 64) != expected(self.program):
            raise AssertionError(f"{self.module.name}: {self.program.entry}(7) returned {result}")
        return taken / len(self.module.sites)


@cache
def expected(text: FlatProgram) -> int:
    """What its `sweep(7)` returns."""
    return text.expected(7)


@cache
def flat(size: int) -> FlatModule:
    """The program of that many functions, loaded at first use."""
    return FlatModule(size)


def _timed_ms(action: Callable[[], object]) -> float:
    start = time.perf_counter_ns()
    action()
    return (time.perf_counter_ns() - start) / 1e6


def _attached(known: FlatModule, attachment: Attachment) -> tuple[float, float]:
    """Milliseconds to register and to unregister. Every site is checked in between and afterwards."""
    register = _timed_ms(attachment.attach)
    try:
        known.check_sites(_JUMP)
    finally:
        unregister = _timed_ms(attachment.detach)
    known.check_sites(_NOP)
    return register, unregister


def _sample_attach(make: Callable[[str], Attachment], size: int) -> Sample:
    """Times are for the whole of it, register and unregister together, in nanoseconds."""
    register, unregister = _attached(flat(size), make("*"))
    figures = {"register_ms": register, "unregister_ms": unregister}
    return Sample(0.0, (register + unregister) * 1e6, 0, 0, extra=figures)


def _sample_first(size: int) -> Sample:
    """The first registration on a program that was just loaded: all stubs are written."""
    text = re.sub(r"@f(?=\d)", "@new", generate_flat(size).ir)  # names that no other row's program has
    module = sandbox.load(text, name="fresh", opt=0)
    try:
        attachment = probes.both_native("new*")
        figures = {"register_ms": _timed_ms(attachment.attach), "unregister_ms": _timed_ms(attachment.detach)}
    finally:
        module.unload()
    return Sample(0.0, sum(figures.values()) * 1e6, 0, 0, extra=figures)


def _sample_sweep(size: int) -> Sample:
    known = flat(size)
    baseline = known.sweep()
    calls = len(known.module.sites)
    with probes.both_native([*known.module.sites]) as probe:
        probed = known.sweep()
        return Sample(baseline, probed, calls, probe.hits, probe.counts.missed)


def _sample_among(size: int, calls: int) -> Sample:
    """The loop of fprobe.both.native, with a fprobe that is on all functions there are."""
    flat(size)
    run = program.timed_loop(program.program(), "work", calls)
    baseline = run()
    with probes.both_native("*") as probe:
        probed = run()
        return Sample(baseline, probed, calls, probe.hits, probe.counts.missed)


def _entry(target: str) -> Attachment:
    return fprobe.attach(target, entry=nothing)


def rows(size: int) -> list[Row]:
    """Attaching to every function there is, of which `size` are of the program loaded for it."""
    return [
        Row(f"attach.{size}", "`*`, both ends", partial(_sample_attach, probes.both_native, size), rounds=10),
        Row(f"attach.{size}.entry", "`*`, entry only", partial(_sample_attach, _entry, size), rounds=10),
    ]


def large_rows(size: int, calls: int) -> list[Row]:
    """The same, and the rows of a program so large that it does not fit the caches."""
    among = partial(_sample_among, size, calls)
    return [
        *rows(size),
        Row(
            f"attach.{size}.first",
            "all functions of a program just loaded, both ends",
            partial(_sample_first, size),
            rounds=3,
        ),
        Row(f"sweep.{size}", "each function once, from cold caches", partial(_sample_sweep, size), rounds=10),
        Row(f"fprobe.both.native.among{size}", f"... while {size:,} others are probed", among),
    ]
