"""Handlers in the native language that note that they ran, and call what their probe's notes name (see matrix).

notes: [entries, exits, what the entry handler calls, what the exit handler calls]
"""

from __future__ import annotations

import ctypes
from typing import Any

import kprobes
from ftrace.hit.records import Probe
from sandbox.native import cast, fn, i32, native, ptr, u64, void


@native(inline=True)
def noted(notes: ptr[u64], which: u64) -> void:
    notes[which] = notes[which] + 1
    if notes[2 + which] != 0:
        cast(fn[u64], notes[2 + which])()


@kprobes.native
def pre(p, regs):
    noted(cast(ptr[u64], p.rp), 0)


@kprobes.native
def post(p, regs, flags):
    noted(cast(ptr[u64], p.rp), 1)


@kprobes.native
def nothing(p, regs, flags):
    pass


@kprobes.native
def call(ri, regs):
    noted(cast(ptr[u64], ri.rp.cookie), 0)


@kprobes.native
def leave(ri, regs):
    noted(cast(ptr[u64], ri.rp.cookie), 1)


@native(cc="preserve_most")
def entry(fp: ptr[Probe], ip: u64, ret_ip: u64, regs: u64, data: ptr[u64]) -> i32:
    noted(cast(ptr[u64], fp.action), 0)
    return 0


@native(cc="preserve_most")
def exit_(fp: ptr[Probe], ip: u64, ret_ip: u64, regs: u64, data: ptr[u64]) -> void:
    noted(cast(ptr[u64], fp.action), 1)


class NotedKprobe(kprobes.kprobe):
    """A kprobe whose handlers find their notes."""

    def __init__(self, notes: Any, **options: Any) -> None:
        super().__init__(**options)
        self._notes = notes

    def _prepare_fast(self, on_ftrace: bool) -> None:
        self.native.rp = ctypes.addressof(self._notes)
        super()._prepare_fast(on_ftrace)


class NotedKretprobe(kprobes.kretprobe):
    """A kretprobe whose handlers find their notes."""

    def __init__(self, notes: Any, **options: Any) -> None:
        super().__init__(**options)
        self._notes = notes

    def _prepare_fast(self, on_ftrace: bool) -> None:
        if not self._native.cookie:  # else a Python handler's
            self._native.cookie = ctypes.addressof(self._notes)
        super()._prepare_fast(on_ftrace)
