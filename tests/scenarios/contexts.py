"""The four ways to call a target: plainly, from a softirq, from an interrupt, and while kprobes are kept busy."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from kprobes.busy import kprobe_busy_begin, kprobe_busy_end
from sandbox.threads.contexts import call_in

Call = Callable[[int, tuple[int, int, int]], int]
_Routine = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)


def _plain(routine: int, words: tuple[int, int, int]) -> int:
    return int(_Routine(routine)(*words))


def _softirq(routine: int, words: tuple[int, int, int]) -> int:
    return call_in("softirq", routine, words)


def _irq(routine: int, words: tuple[int, int, int]) -> int:
    return call_in("irq", routine, words)


def _busy(routine: int, words: tuple[int, int, int]) -> int:
    kprobe_busy_begin()
    try:
        return _plain(routine, words)
    finally:
        kprobe_busy_end()


CALLS: dict[str, Call] = {"call": _plain, "softcall": _softirq, "irqcall": _irq, "busycall": _busy}
"""Step or action -> how it makes the call: routine(words), which calls the target."""
