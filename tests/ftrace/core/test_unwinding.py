"""HAZARDS 1, CFI: C++ exceptions, backtrace() and gdb get through hooked calls (RH-18, RH-19)."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from isolation import isolated

needs_cc = pytest.mark.skipif(not shutil.which("c++"), reason="no C++ compiler")

PROGRAM = r"""
#include <execinfo.h>
#include <signal.h>
extern "C" {
__attribute__((noinline)) long thrower(long a) { if (a == 0) throw 42L; return thrower(a - 1) + 1; }
__attribute__((noinline)) long catcher(long a) { try { return thrower(a); } catch (long x) { return -x; } }
__attribute__((noinline)) long level(long a, void **frames) { if (a == 0) return backtrace(frames, 64); return level(a - 1, frames) + 0 * a; }
__attribute__((noinline)) long inner(long a) { raise(SIGUSR2); return a + 1; }
__attribute__((noinline)) long outer(long a) { return inner(a) * 2; }
}
"""  # noqa: E501


def _load():
    import pathlib
    import tempfile

    import sandbox

    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory, "unwound.cc")
        path.write_text(PROGRAM)
        return sandbox.load(path, name="unwound")


@needs_cc
@isolated
def test_cfi_a_cpp_exception_passes_through_hooked_calls():
    import fprobe

    module = _load()
    for handlers in ({"action": fprobe.Record()}, {"entry": lambda *_: 0, "exit": lambda *_: None}):
        with fprobe.attach("*", nr_maxactive=100, **handlers) as probe:
            for _ in range(200):
                assert module["catcher"](5) == -42
        assert probe.counts.hits == 200 * 7 and probe.counts.missed == 0


@needs_cc
@isolated
def test_cfi_backtrace_sees_every_function_below_a_hooked_one():
    import ctypes

    import fprobe
    from sandbox import symbol_table

    module = _load()
    frames = (ctypes.c_void_p * 64)()
    with fprobe.attach("*", action=fprobe.Record(), nr_maxactive=100):
        count = module["level"](5, frames)
    named = [symbol_table.describe(frame) for frame in frames[:count] if frame]
    assert sum("level" in name for name in named) == 6, named


@pytest.mark.stress
@needs_cc
@pytest.mark.skipif(shutil.which("gdb") is None, reason="gdb is not installed")
def test_cfi_gdb_walks_through_hooked_calls():
    source = f"""
import sys
sys.path[:0] = {[str(p) for p in sys.path if p]!r}
import fprobe, test_unwinding
module = test_unwinding._load()
with fprobe.attach("*", action=fprobe.Record(), nr_maxactive=100):
    module["outer"](1)
"""
    command = ["gdb", "-q", "-nx", "-batch", "-ex", "handle SIGUSR2 stop nopass", "-ex", "run", "-ex", "bt", "--args"]
    done = subprocess.run(
        [*command, sys.executable, "-c", source], capture_output=True, text=True, timeout=100, check=False
    )
    frames = [line for line in done.stdout.splitlines() if line.startswith("#")]
    inner = next((i for i, line in enumerate(frames) if " inner " in line), None)
    assert inner is not None, done.stdout + done.stderr
    assert "outer" in frames[inner + 2], frames
