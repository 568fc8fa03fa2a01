"""Handlers come and go: what they took goes with them."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from typing import Any

import pytest
from isolation import isolated

import fprobe
import sandbox
from ftrace.core.maps.variable import PerTask
from ftrace.core.runtime import runtime
from sandbox.native import array, i32, struct, u64, void
from sandbox.symbols import source_lines
from sandbox.symbols.table import symbol_table
from sandbox.threads import tasks


@struct
class Half:
    words: array[u64, 60]


@sandbox.function
def counted(x: u64) -> u64:
    return x + 1


def counter() -> tuple[Any, Any]:
    """A handler, and the variable of its own that it counts in."""
    calls = fprobe.per_task(u64)

    @fprobe.native
    def count_call(fp, ip, ret_ip, regs, data) -> i32:
        calls.value += 1
        return 0

    return count_call, calls


def calls_of(variable: PerTask) -> int:
    return sum(value for _, value in variable.items())


def names() -> list[str]:
    gc.collect()
    # What has been collected is withdrawn when the next handler is linked.
    handler, _ = counter()
    with fprobe.attach(["counted"], entry=handler):
        return [symbol.module for symbol in symbol_table if "count_call" in symbol.module]


@pytest.mark.stress
@isolated
def test_the_room_of_variables_comes_back_zeroed() -> None:
    counted.module  # noqa: B018 (loads it)
    for _ in range(2 * tasks.VARIABLE_SPACE // 8):
        handler, calls = counter()
        with fprobe.attach(["counted"], entry=handler):
            assert [counted(1), counted(2)] == [2, 3]
        assert calls_of(calls) == 2
        del handler, calls
        gc.collect(0)


@isolated
def test_images_of_handlers_that_are_gone_are_withdrawn() -> None:
    counted.module  # noqa: B018 (loads it)
    assert len(names()) == 1
    before = runtime().image.variable("fault_range_count").value
    for _ in range(5):
        assert len(names()) == 1
    assert runtime().image.variable("fault_range_count").value == before
    assert sum("count_call" in module for module in source_lines._code) == 1


@isolated
def test_a_registered_probe_keeps_its_handlers_variables() -> None:
    counted.module  # noqa: B018 (loads it)
    handler, calls = counter()
    probe = fprobe.attach(["counted"], entry=handler).attach()
    offset = calls._place.offset
    del handler, calls
    gc.collect()
    other = fprobe.per_task(u64)
    assert other._place.offset != offset
    assert counted(1) == 2 and calls_of(other) == 0
    probe.detach()
    del probe
    gc.collect()
    again = fprobe.per_task(u64)
    assert again._place.offset == offset
    assert calls_of(again) == 0


@isolated(cold=True)  # others than ours have variables there
def test_gaps_are_used_again_if_they_are_large_enough() -> None:
    first, second, third = fprobe.per_task(Half), fprobe.per_task(u64), fprobe.per_task(Half)
    with pytest.raises(MemoryError, match="480 bytes does not fit: 56 bytes are left in a task's record"):
        fprobe.per_task(Half)
    offset = first._place.offset
    del first
    gc.collect()
    assert fprobe.per_task(Half)._place.offset == offset
    assert second._place.offset == offset + 480 and third._place.offset == offset + 488


SLOW = """
declare i32 @usleep(i32)
define i64 @slow(i32 %microseconds) {
  %ignored = call i32 @usleep(i32 %microseconds)
  ret i64 7
}
"""


def watcher() -> tuple[Any, Any]:
    """An exit handler, and the variable that it counts in."""
    returns = fprobe.per_task(u64)

    @fprobe.native
    def count_return(fp, ip, ret_ip, regs, data) -> void:
        returns.value += regs.ax

    return count_return, returns


@isolated
def test_a_call_in_flight_outlives_its_handlers() -> None:
    module = sandbox.load(SLOW, name="slow")
    handler, returns = watcher()
    probe = fprobe.attach(["slow"], exit=handler).attach()
    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(module["slow"](400_000)))
    thread.start()
    time.sleep(0.1)
    image = weakref.ref(probe.fp._handlers[1].keep)
    probe.detach()
    del probe, handler, returns
    gc.collect()
    for _ in range(2):  # the first may still find the list of probes that the call came in with
        other, seen = watcher()
        with fprobe.attach(["slow"], exit=other):
            assert module["slow"](1) == 7
        assert calls_of(seen) == 7
        gc.collect()
    thread.join()
    assert results == [7]
    other, seen = watcher()
    with fprobe.attach(["slow"], exit=other):
        assert module["slow"](1) == 7
    gc.collect()
    assert image() is None
