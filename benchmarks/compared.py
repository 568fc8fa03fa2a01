"""The same handler in the native language and in C, on the same path."""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import tempfile
from functools import cache, partial
from pathlib import Path
from typing import Any

import fprobe
import sandbox
from benchmarks import program
from benchmarks.measure import Row, Sample
from ftrace import pt_regs
from ftrace.core.handlers.kinds import BoundHandler
from sandbox import ProgramError
from sandbox.loading.csource import find_compiler
from sandbox.native import array, cast, global_var, i32, native, ptr, u32, u64

_SLOTS = 256
_IN_C = """
#include <stdint.h>
struct pt_regs { uint64_t words[12], dx, si, di; };
static uint64_t table[256];
int by_argument(uint64_t fp, uint64_t ip, uint64_t ret_ip, struct pt_regs *regs, uint64_t data)
{
    uint32_t hash = 0;
    for (uint64_t i = 0; i < 16; i++)
        hash = (hash << 5) + hash + (uint32_t)(regs->di >> i);
    table[hash & 255] += ip;
    return hash % 1000 == 999;
}
"""
_FLAGS = ("-O2", "-mgeneral-regs-only")

table = global_var(array[u64, _SLOTS])


@native
def by_argument(fp: u64, ip: u64, ret_ip: u64, regs: ptr[pt_regs], data: u64) -> i32:
    """What _IN_C says in C."""
    code: u32 = 0
    for i in range(16):
        code = (code << 5) + code + cast(u32, regs.di >> i)
    table[cast(u64, code & 255)] += ip
    return 1 if code % 1000 == 999 else 0


@cache
def _in_c() -> BoundHandler:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "handler.c")
        path.write_text(_IN_C)
        module = sandbox.load(path, flavour="none", cflags=_FLAGS)
    return BoundHandler(module["by_argument"].address, keep=module)


def _nanoseconds(handler: Any, calls: int) -> tuple[float, int]:
    """Per call with the handler at the entry, and the hits."""
    run = program.timed_loop(program.program(), "work", calls)
    with fprobe.attach("work", entry=handler) as probe:
        return run(), probe.hits


def _sample(calls: int) -> Sample:
    """`baseline_ns` is with the handler in C; `ratio`: what the handlers add to a call, native over C."""
    plain = program.timed_loop(program.program(), "work", calls)()
    of_c, _ = _nanoseconds(_in_c(), calls)
    of_native, hits = _nanoseconds(by_argument, calls)
    return Sample(of_c, of_native, calls, hits, extra={"ratio": (of_native - plain) / (of_c - plain)})


def rows(calls: int) -> list[Row]:
    """The row of this group; none where there is no C compiler."""
    try:
        find_compiler("C", Path("handler.c"))
    except ProgramError:
        return []
    return [Row("handler.native_vs_c", "a native handler, over the same in C", partial(_sample, calls))]
