"""The runtime: what its object depends on."""

from __future__ import annotations

import pytest
from isolation import run_source

START = """
import ctypes, zlib
from sandbox.native.back import compile

for _ in range({keys}):
    assert not ctypes.CDLL(None).pthread_key_create(ctypes.byref(ctypes.c_uint()), None)
compiled, compile_ir = [], compile.compile_ir
compile.compile_ir = lambda *given: compiled.append(given) or compile_ir(*given)

import fprobe
from ftrace.core.runtime import runtime
from kprobes.hit.runtime import kprobe_runtime

kprobe_runtime()
started = len(compiled)
with fprobe.attach("libz:crc32", entry=lambda *hit: None) as probe:
    zlib.crc32(b"abc")
    assert probe.hits == 1
print(runtime().key.offset, started)
"""


def start(keys: int) -> tuple[int, int]:
    """Where a process that has `keys` pthread keys finds its tasks, and how many objects it had to compile."""
    done = run_source(START.format(keys=keys), FPROBE_NO_CACHE="")
    assert done.returncode == 0, done.stderr
    offset, compiled = map(int, done.stdout.split())
    return offset, compiled


@pytest.mark.stress
def test_processes_that_find_their_tasks_at_different_offsets_share_the_objects() -> None:
    """Each library that makes a pthread key first would otherwise have the whole runtime compiled once more."""
    first, _ = start(keys=0)
    second, compiled = start(keys=2)
    assert (second, compiled) == (first + 32, 0)
