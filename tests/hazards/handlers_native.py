"""Handlers in the native language, in a file of their own: their source is read from it.

They write to the memory that `fprobe.action` names: [calls, sum of entry data, exits], or, for tally_*, [entries, exits,
what did not agree between them].
"""

from __future__ import annotations

from ftrace.hit.records import Probe
from ftrace.hit.x86_64.pt_regs import pt_regs
from sandbox.native import addressof, atomic_add, cast, i32, native, null, ptr, single_add, u64, void


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


@native(cc="preserve_most")
def tally_entry(fp: ptr[Probe], ip: u64, ret_ip: u64, regs: u64, data: ptr[u64]) -> i32:
    atomic_add(addressof(cast(ptr[u64], fp.action)[0]), 1, "relaxed")
    if data != null:
        single_add(addressof(data[0]), ip)
    return 0


@native(cc="preserve_most")
def tally_exit(fp: ptr[Probe], ip: u64, ret_ip: u64, regs: u64, data: ptr[u64]) -> void:
    notes = cast(ptr[u64], fp.action)
    if data != null and data[0] != ip:
        atomic_add(addressof(notes[2]), 1, "relaxed")
    atomic_add(addressof(notes[1]), 1, "relaxed")


@native(cc="preserve_most")
def tally_cancel(fp: ptr[Probe], ip: u64, ret_ip: u64, regs: u64, data: ptr[u64]) -> i32:
    atomic_add(addressof(cast(ptr[u64], fp.action)[0]), 1, "relaxed")
    return 1


@native(cc="preserve_most")
def tally_entry_regs(fp: ptr[Probe], ip: u64, ret_ip: u64, regs: ptr[pt_regs], data: ptr[u64]) -> i32:
    atomic_add(addressof(cast(ptr[u64], fp.action)[0]), 1, "relaxed")
    if data != null:
        single_add(addressof(data[0]), regs.ip)
    return 0


@native(cc="preserve_most")
def tally_exit_regs(fp: ptr[Probe], ip: u64, ret_ip: u64, regs: ptr[pt_regs], data: ptr[u64]) -> void:
    notes = cast(ptr[u64], fp.action)
    if (data != null and data[0] != ip + 5) or regs.ip != ret_ip:
        atomic_add(addressof(notes[2]), 1, "relaxed")
    atomic_add(addressof(notes[1]), 1, "relaxed")


@native(cc="preserve_most")
def tally_entry_all(fp: ptr[Probe], ip: u64, ret_ip: u64, regs: ptr[pt_regs], data: ptr[u64]) -> i32:
    """`tally_entry_regs`, given every register."""
    atomic_add(addressof(cast(ptr[u64], fp.action)[0]), 1, "relaxed")
    if data != null:
        single_add(addressof(data[0]), regs.ip + 0 * regs.r15)
    return 0


@native(cc="preserve_most")
def tally_entry_sp(fp: ptr[Probe], ip: u64, ret_ip: u64, regs: ptr[pt_regs], data: ptr[u64]) -> i32:
    """`tally_entry_regs`, which finds its caller on the stack."""
    notes = cast(ptr[u64], fp.action)
    atomic_add(addressof(notes[0]), 1, "relaxed")
    if cast(ptr[u64], regs.sp)[0] != ret_ip:
        atomic_add(addressof(notes[2]), 1, "relaxed")
    if data != null:
        single_add(addressof(data[0]), regs.ip)
    return 0


@native(cc="preserve_most")
def tally_exit_all(fp: ptr[Probe], ip: u64, ret_ip: u64, regs: ptr[pt_regs], data: ptr[u64]) -> void:
    """`tally_exit_regs`, given every register."""
    notes = cast(ptr[u64], fp.action)
    if (data != null and data[0] != ip + 5) or regs.ip + 0 * regs.r15 != ret_ip:
        atomic_add(addressof(notes[2]), 1, "relaxed")
    atomic_add(addressof(notes[1]), 1, "relaxed")


@native(cc="preserve_most")
def tally_exit_alone(fp: ptr[Probe], ip: u64, ret_ip: u64, regs: u64, data: ptr[u64]) -> void:
    notes = cast(ptr[u64], fp.action)
    if data[0] != 0:
        atomic_add(addressof(notes[2]), 1, "relaxed")
    data[0] = ip
    atomic_add(addressof(notes[1]), 1, "relaxed")
