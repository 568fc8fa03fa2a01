"""Handlers that call the function they are probing, each time."""

from __future__ import annotations

from ftrace.hit.records import Probe
from ftrace.hit.x86_64.pt_regs import pt_regs
from sandbox.native import Structure, cast, fn, i32, native, ptr, struct, u64, void


@struct
class Nesting(Structure):
    """A probe's action: what its handlers call, and how often they have been called."""

    target: fn[u64, u64]
    entries: u64
    exits: u64


@native(cc="preserve_most")
def entry(fp: ptr[Probe], ip: u64, ret_ip: u64, regs: u64, data: u64) -> i32:
    nesting = cast(ptr[Nesting], fp.action)
    nesting.entries += 1
    nesting.target(0)
    return 0


@native(cc="preserve_most")
def entry_sp(fp: ptr[Probe], ip: u64, ret_ip: u64, regs: ptr[pt_regs], data: u64) -> i32:
    """It looks at sp too, and gives up where a lock should have ended it long before."""
    nesting = cast(ptr[Nesting], fp.action)
    nesting.entries += 1
    if nesting.entries < 10 and regs.sp != 0:
        nesting.target(0)
    return 0


@native(cc="preserve_most")
def leave(fp: ptr[Probe], ip: u64, ret_ip: u64, regs: u64, data: u64) -> void:
    nesting = cast(ptr[Nesting], fp.action)
    nesting.exits += 1
    nesting.target(0)
