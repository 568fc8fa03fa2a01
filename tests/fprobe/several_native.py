"""Handlers that write down what they see, and do what their probe's Notes ask for."""

from __future__ import annotations

from ftrace.hit.records import Probe
from sandbox.native import Structure, cast, fn, i32, i64, native, null, ptr, struct, u32, u64, void

ENTRY, EXIT = 1, 2
LOG = 1 << 15


@struct
class Notes(Structure):
    """What one probe's handlers do. The log is shared by all: how many words it has, then the words."""

    log: ptr[u64]
    number: u64
    calls: u64
    cancels: u64  # every call of that many; 0: none
    nests: u64  # every call of that many calls `nested`; 0: none
    nested: u64
    changes: u64  # at the call of that number, flags of another probe
    victim: ptr[Probe]
    flags: u64


@native
def write(log: ptr[u64], word: u64) -> void:
    if log[0] < LOG:
        log[0] += 1
        log[log[0]] = word


@native
def tell(notes: ptr[Notes], what: u64, ip: u64, ret_ip: u64, data: ptr[u64]) -> void:
    write(notes.log, notes.number << 8 | what)
    write(notes.log, ip)
    write(notes.log, ret_ip)
    write(notes.log, data[0] + 1 if data != null else 0)


@native
def act(notes: ptr[Notes]) -> void:
    if notes.calls == notes.changes:
        notes.victim.flags ^= cast(u32, notes.flags)
    if notes.nests != 0 and notes.calls % notes.nests == 0:
        cast(fn[i64, i64], notes.nested)(1)


@native(cc="preserve_most")
def entry(fp: ptr[Probe], ip: u64, ret_ip: u64, regs: u64, data: ptr[u64]) -> i32:
    notes = cast(ptr[Notes], fp.action)
    notes.calls += 1
    number = notes.calls
    tell(notes, ENTRY, ip, ret_ip, data)
    if data != null:
        data[0] = ip ^ number
    act(notes)
    return 1 if notes.cancels != 0 and number % notes.cancels == 0 else 0


@native(cc="preserve_most")
def leave(fp: ptr[Probe], ip: u64, ret_ip: u64, regs: u64, data: ptr[u64]) -> void:
    notes = cast(ptr[Notes], fp.action)
    tell(notes, EXIT, ip, ret_ip, data)
    act(notes)
