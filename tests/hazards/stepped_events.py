"""What is stepped through: functions whose hits are recorded before registers are saved, under the driver of `stepped`.

Run as a program: `stepped_events.py MANNER ROUNDS`. It prints the ranges of code to be interrupted, waits for a line, then calls.
"""

# ruff: noqa: E402  (it is run as a program)

from __future__ import annotations

import ctypes
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

from programs import load_c, stacks_not_empty
from stepped import CALLS_IN_PATH, DRIVER, IR, NAMES, PLACES

MANNERS = {
    "p": "p:e{0} {0} a=$arg1 b=%ax:u8",
    "p, text": "p:e{0} {0} a=$arg1 s=@{1:#x}:string bad=@8:u32",
    "f": "f:e{0} {0} a=$arg1",
    "r": "r:e{0} {0} a=$arg1 r=$retval",
    "f, returns": "f:e{0} {0}%return a=$arg1 r=$retval",
}
"""The definition of an event on a function, given its name and the address of a text."""
TEXT = ctypes.create_string_buffer(b"a text of some words")


def defined(manner: str) -> dict[str, Any]:
    """The enabled events by the functions' names."""
    from fprobe.tracefs import tracefs
    from ftrace.tracing.events.registry import event_registry

    events = {}
    for name in NAMES:
        tracefs.write("dynamic_events", MANNERS[manner].format(name, ctypes.addressof(TEXT)), append=True)
        events[name] = event_registry.events()[-1]
        events[name].set_enabled(True)
    return events


def spans_of(module: Any, events: dict[str, Any]) -> list[tuple[int, int]]:
    """The code that a hit runs: the functions, their stubs, the runtimes, what records early."""
    from ftrace.core.runtime import runtime
    from ftrace.core.tracer import tracer
    from kprobes.hit.runtime import kprobe_runtime

    spans = [(text.base, text.end) for text in module.texts] + [runtime().image.text, kprobe_runtime().image.text]
    stubs = tracer().table.block_of(module).stub_text
    spans.append((stubs.base, stubs.end))
    spans += [event.probes[0].recording._shortcut.early.image.text for event in events.values()]
    return sorted(set(spans))


def complaints_of(events: dict[str, Any], calls: int) -> list[str]:
    """What is wrong with the events' counts after that many calls of the path.

    A record that meets a page switch is lost, and counted (RINGBUFFER).
    """
    from ftrace.tracing.instances.trace_array import global_trace

    buffer, complaints = global_trace().buffer, []
    found = Counter(int.from_bytes(record.data[:2], "little") for record in buffer.records())
    lost = buffer.stats(0).dropped
    for name, event in events.items():
        probe, expected = event.probes[0], calls * CALLS_IN_PATH[IR][name]
        missing = probe.hits - found[event.id]
        lost -= missing
        if probe.hits + probe.misses != expected or not 0 <= missing <= probe.hits // 10:
            complaints.append(
                f"{name}: {expected} calls, {probe.hits} hits, {probe.misses} missed, {missing} not recorded"
            )
    return complaints + [f"{lost} records more are lost than are missing"] * (lost != 0)


def main(manner: str, rounds: int) -> int:
    """Define, say where, call, check; the exit status."""
    import sandbox
    from sandbox import symbol_table

    module = sandbox.load(IR, name="stepped")
    driver = load_c(DRIVER)
    events = defined(manner)
    drive = driver.symbol("drive")
    driver["prepare"](module["on_path"], None, drive.address, drive.end, 1)
    module["on_path"](0)
    print(json.dumps(spans_of(module, events)), flush=True)
    sys.stdin.readline()
    driver["drive"](rounds)
    numbers, places = (ctypes.c_long * 3)(), (ctypes.c_void_p * PLACES)()
    driver["told"](numbers, places)
    handled, wrong, lost = numbers
    complaints = [f"{wrong} wrong results"] if wrong else []
    if lost:
        complaints.append(
            f"{lost} backtraces end before the driver, from {[symbol_table.describe(p) for p in places if p]}"
        )
    complaints += complaints_of(events, rounds + handled + 1)
    complaints += stacks_not_empty()
    print(json.dumps({"handled": handled, "complaints": complaints}), flush=True)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
