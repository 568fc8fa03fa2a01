"""Handlers in the native language that note that they ran, and call what their probe's notes name (see matrix).

notes: [entries, exits, what the entry handler calls, what the exit handler calls]
"""

from __future__ import annotations

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
    noted(cast(ptr[u64], p.action), 0)


@kprobes.native
def post(p, regs, flags):
    noted(cast(ptr[u64], p.action), 1)


@kprobes.native
def nothing(p, regs, flags):
    pass


@kprobes.native
def call(ri, regs):
    noted(cast(ptr[u64], ri.rp.action), 0)


@kprobes.native
def leave(ri, regs):
    noted(cast(ptr[u64], ri.rp.action), 1)


@native(cc="preserve_most")
def entry(fp: ptr[Probe], ip: u64, ret_ip: u64, regs: u64, data: ptr[u64]) -> i32:
    noted(cast(ptr[u64], fp.action), 0)
    return 0


@native(cc="preserve_most")
def exit_(fp: ptr[Probe], ip: u64, ret_ip: u64, regs: u64, data: ptr[u64]) -> void:
    noted(cast(ptr[u64], fp.action), 1)
