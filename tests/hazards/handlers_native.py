"""Handlers in the native language, in a file of their own: their source is read from it.

They write to the memory that `fprobe.action` names: [calls, sum of entry data, exits].
"""

from __future__ import annotations

from ftrace.dispatch import pt_regs
from ftrace.records import Probe
from sandbox.native import cast, i32, native, null, ptr, u64, void


@native(cc="preserve_most")
def cancel_odd(fp: ptr[Probe], ip: u64, ret_ip: u64, regs: u64, data: ptr[u64]) -> i32:
    notes = cast(ptr[u64], fp.action)
    number = notes[0]
    notes[0] = number + 1
    if data != null:
        data[0] = number * 10
    return cast(i32, number & 1)


@native(cc="preserve_most")
def note_exit(fp: ptr[Probe], ip: u64, ret_ip: u64, regs: u64, data: ptr[u64]) -> void:
    notes = cast(ptr[u64], fp.action)
    notes[1] = notes[1] + data[0]
    notes[2] = notes[2] + 1


@native
def argument_add(fp: ptr[Probe], ip: u64, ret_ip: u64, regs: ptr[pt_regs], data: ptr[u64]) -> i32:
    regs.di = regs.di + 100
    return 0


@native
def result_double(fp: ptr[Probe], ip: u64, ret_ip: u64, regs: ptr[pt_regs], data: ptr[u64]) -> void:
    regs.ax = regs.ax * 2
