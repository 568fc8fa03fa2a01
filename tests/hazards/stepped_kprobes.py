"""What is stepped through: instructions probed in every manner, under the driver of `stepped`.

Run as a program: `stepped_kprobes.py MANNER ROUNDS`. It prints the ranges of code to be interrupted, waits for a line, then calls.
"""

# ruff: noqa: E402, E501  (it is run as a program; C is as wide as it is)

from __future__ import annotations

import ctypes
import json
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [
    str(Path(__file__).parent),
    str(Path(__file__).parent.parent),
    str(Path(__file__).parent.parent / "kprobes"),
]

import matrix_handlers
from control_block import marks_of
from matrix import field_offsets
from programs import load_c
from stepped import DRIVER, JUMPS, PLACES, returning, stacks_not_empty

import kprobes

PROGRAM = r"""
#define STUBLESS __attribute__((noipa, patchable_function_entry(0)))
STUBLESS long leaf(long x) { return x + 1; }
STUBLESS long middle(long x) { return leaf(x) + leaf(x + 1); }
STUBLESS long on_path(long x) { return middle(x) * 2; }
"""
STUBS = PROGRAM.replace(", patchable_function_entry(0)", "")
TO_STUBLESS = "noipa", "noipa, patchable_function_entry(0)"
CALLS = {"leaf": 2, "middle": 1, "on_path": 1}
HANDLERS = r"""
#include <stdatomic.h>
#define STUBLESS __attribute__((noipa, patchable_function_entry(0)))
static int seen(_Atomic long *notes, int which) { notes[which]++; return 0; }
STUBLESS int c_pre(char *p) { return seen(*(_Atomic long **)(p + P_ACTION), 0); }
STUBLESS void c_post(char *p) { seen(*(_Atomic long **)(p + P_ACTION), 1); }
STUBLESS int c_call(char *ri) { return seen(*(_Atomic long **)(*(char **)(ri + RI_RP) + RP_ACTION), 0); }
STUBLESS int c_return(char *ri) { return seen(*(_Atomic long **)(*(char **)(ri + RI_RP) + RP_ACTION), 1); }
"""


class Hit:
    """A probe, what it notes, and how often the probed instruction is executed in one call of the path."""

    def __init__(
        self, name: str, offset: int, times: int, probe: Any, notes: Any, register: Callable[[Any], None]
    ) -> None:
        self.name, self.offset, self.times, self.probe, self.notes, self.register = (
            name,
            offset,
            times,
            probe,
            notes,
            register,
        )

    def complaints(self, calls: int) -> list[str]:
        """What is wrong with its counts after that many calls of the path."""
        expected, kp = calls * self.times, getattr(self.probe, "kp", self.probe)
        missed = kp.nmissed + (self.probe.nmissed if kp is not self.probe else 0)
        found = []
        if self.notes[0] + missed != expected:
            found.append(f"{self.name}+{self.offset:#x}: {self.notes[0]} hits and {missed} missed of {expected}")
        has_second = getattr(self.probe, "post_handler", None) or getattr(self.probe, "handler", None)
        if has_second and self.notes[1] != self.notes[0]:
            found.append(f"{self.name}+{self.offset:#x}: {self.notes[0]} hits, but {self.notes[1]} came to their end")
        return found


class Manner:
    """How the instructions are probed: the handlers, by what, and on which program.

    `jumping`: the handler of the signal calls what leaves a call behind that never returns, and that a kretprobe is on.
    """

    def __init__(
        self,
        handlers: str,
        post: bool = False,
        returns: bool = False,
        optimized: bool = False,
        program: str = PROGRAM,
        jumping: bool = False,
    ) -> None:
        self.handlers, self.post, self.returns, self.optimized = handlers, post, returns, optimized
        self.program, self.jumping = program, jumping

    def hits(self, module: Any) -> list[Hit]:
        """On each instruction of each function, or on their entries."""
        from kprobes.jump.functions import function_at

        given = getattr(self, f"_{self.handlers.lower()}")
        hits = []
        for name, times in CALLS.items():
            symbol = module.symbol(name)
            entry_only = self.returns or self.program is STUBS
            starts = [symbol.address] if entry_only else function_at(symbol.address, symbol.end).starts
            for start in starts:
                notes = (ctypes.c_uint64 * 4)()
                make = self._kretprobe if self.returns else self._kprobe
                hits.append(make(name, start - symbol.address, times, notes, *given(notes)))
        return hits

    def _kprobe(self, name: str, offset: int, times: int, notes: Any, first: Any, second: Any) -> Hit:
        post = second if self.post else None
        probe = kprobes.kprobe(symbol_name=name, offset=offset, pre_handler=first, post_handler=post)
        probe.action = ctypes.addressof(notes)
        return Hit(name, offset, times, probe, notes, kprobes.register_kprobe)

    def _kretprobe(self, name: str, offset: int, times: int, notes: Any, first: Any, second: Any) -> Hit:
        probe = kprobes.kretprobe(symbol_name=name, entry_handler=first, handler=second, maxactive=1000)
        probe.action = ctypes.addressof(notes)
        return Hit(name, offset, times, probe, notes, kprobes.register_kretprobe)

    def _native(self, notes: Any) -> tuple[Any, Any]:
        return (
            (matrix_handlers.call, matrix_handlers.leave)
            if self.returns
            else (matrix_handlers.pre, matrix_handlers.post)
        )

    def _c(self, notes: Any) -> tuple[Any, Any]:
        module = load_c(field_offsets() + HANDLERS)
        return (module["c_call"], module["c_return"]) if self.returns else (module["c_pre"], module["c_post"])

    def _python(self, notes: Any) -> tuple[Any, Any]:
        def first(*_hit: Any) -> None:
            notes[0] += 1

        def second(*_hit: Any) -> None:
            notes[1] += 1

        return first, second


MANNERS = {
    "kprobes, native": Manner("native"),
    "kprobes, native, stepped": Manner("native", post=True),
    "kprobes, C": Manner("C"),
    "kprobes, C, stepped": Manner("C", post=True),
    "kprobes, native, optimized": Manner("native", optimized=True),
    "kprobes, C, optimized": Manner("C", optimized=True),
    "kprobes, native, on ftrace": Manner("native", program=STUBS),
    "kprobes, C with post, on ftrace": Manner("C", post=True, program=STUBS),
    "kprobes, Python, stepped": Manner("Python", post=True),
    "kretprobes, native": Manner("native", returns=True),
    "kretprobes, C": Manner("C", returns=True),
    "kretprobes, native, optimized": Manner("native", returns=True, optimized=True),
    "kretprobes, C, optimized": Manner("C", returns=True, optimized=True),
    "kretprobes, native, on ftrace": Manner("native", returns=True, program=STUBS),
    "kretprobes, C, on ftrace": Manner("C", returns=True, program=STUBS),
    "jumps, kretprobes, C": Manner("C", returns=True, jumping=True),
    "jumps, kretprobes, native, optimized": Manner("native", returns=True, optimized=True, jumping=True),
    "jumps, kretprobes, C, on ftrace": Manner("C", returns=True, program=STUBS, jumping=True),
}


def _spans() -> list[tuple[int, int]]:
    """Code that came to be in this process: what is probed, images, slots, detours.

    Not the text of the C library, which is a copy of ours where it sets signal masks: each handler of the signal ends there.
    """
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, rights, _, _, _, *name = line.split(maxsplit=5)
        is_copy = bool(name) and re.fullmatch(r"/memfd:\S+\.so[.\d]* \(deleted\)", name[0])
        if rights[:3] == "r-x" and (not name or (name[0].startswith("/memfd:") and not is_copy)):
            start, end = addresses.split("-")
            found.append((int(start, 16), int(end, 16)))
    return found


def cut_short(places: list[int]) -> list[str]:
    """Where backtraces ended, apart from jumps of one instruction: to a detour, or from one image to another."""
    from sandbox import symbol_table

    found = [symbol_table.describe(place) for place in places if not _is_lone_jump(place)]
    return [f"backtraces end before the driver, from {found}"] * bool(found)


def _is_lone_jump(place: int) -> bool:
    return ctypes.string_at(place, 2).startswith((b"\xe9", b"\xff\x25"))


def left_behind() -> list[str]:
    """Tasks that are still marked."""
    from ftrace.core.runtime import runtime

    fields, control = ("rec", "context", "kprobe", "preempt"), ("status", "child", "frame", "stepping", "trap")
    marks = [marks_of(task, fields, control) for task in runtime().tasks()]
    return [f"left behind: {mark}" for mark in marks if any(mark.values())]


def main(name: str, rounds: int) -> int:
    """Attach, say where, call, check; the exit status."""
    manner = MANNERS[name]
    module = load_c(manner.program)
    aside = load_c(JUMPS.replace(*TO_STUBLESS)) if manner.jumping else None
    left = returning("jumps", manner.optimized) if manner.jumping else None
    kprobes.set_kprobes_optimization(int(manner.optimized))
    hits = manner.hits(module)
    for hit in hits:
        hit.register(hit.probe)
    kprobes.wait_for_kprobe_optimizer()
    spans = _spans()
    driver = load_c(DRIVER)
    drive = driver.symbol("drive")
    driver["prepare"](module["on_path"], aside["around"] if aside else None, drive.address, drive.end, 1)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    print(json.dumps(spans), flush=True)
    sys.stdin.readline()
    driver["drive"](rounds)
    if left is not None:
        module["on_path"](0)  # the next hooked call finds those that never returned
        rounds += 1
    numbers, places = (ctypes.c_long * 3)(), (ctypes.c_void_p * PLACES)()
    driver["told"](numbers, places)
    handled, wrong, lost = numbers
    complaints = [complaint for hit in hits for complaint in hit.complaints(rounds + (0 if aside else handled))]
    # Its calls inside a hit are misses of the kprobe at its entry; an instance is there for each of the others.
    complaints += [f"{left.rp.nmissed} returns missed"] if left is not None and left.rp.nmissed else []
    complaints += [f"{wrong} wrong results"] * (wrong > 0)
    complaints += cut_short([place for place in places[:lost] if place])
    if signal.pthread_sigmask(signal.SIG_BLOCK, ()) != before:
        complaints.append("not the signals are blocked that were")
    complaints += stacks_not_empty() + left_behind()
    print(json.dumps({"handled": handled, "complaints": complaints}), flush=True)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
