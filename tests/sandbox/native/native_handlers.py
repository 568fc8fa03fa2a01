"""The handlers of native_handlers.c in the native language."""

from __future__ import annotations

from sandbox.native import (
    addressof,
    array,
    atomic_add,
    cast,
    global_var,
    i32,
    leading_zeros,
    native,
    ptr,
    rdtsc,
    struct,
    u32,
    u64,
)  # fmt: skip


@struct
class Regs:
    r15: u64
    r14: u64
    r13: u64
    r12: u64
    bp: u64
    bx: u64
    r11: u64
    r10: u64
    r9: u64
    r8: u64
    ax: u64
    cx: u64
    dx: u64
    si: u64
    di: u64
    orig_ax: u64
    ip: u64
    cs: u64
    flags: u64
    sp: u64
    ss: u64


@struct
class Probe:
    hits: u64
    missed: u64
    buckets: array[u64, 64]
    last: array[u64, 16]
    low: i32
    high: i32


table = global_var(array[u64, 256])
counter = global_var(u64)


@native
def slow_reads(fp: ptr[Probe], ip: u64, ret_ip: u64, regs: ptr[Regs], data: ptr[u64]) -> i32:
    data[0] = rdtsc()
    return 0 if regs.dx >= 4096 else 1


@native
def histogram(fp: ptr[Probe], ip: u64, ret_ip: u64, regs: ptr[Regs], data: ptr[u64]) -> i32:
    elapsed = rdtsc() - data[0]
    bucket: u64 = 63 - leading_zeros(elapsed | 1)
    fp.buckets[bucket] += 1
    if elapsed > 1000000:
        fp.missed += 1
    return 0


@native
def by_caller(fp: ptr[Probe], ip: u64, ret_ip: u64, regs: ptr[Regs], data: ptr[u64]) -> i32:
    slot = (ret_ip >> 4 ^ ret_ip >> 12) & 255
    for i in range(8):
        at = (slot + i * 2) & 254
        if table[at] == ret_ip:
            table[at + 1] += 1
            return 0
        if table[at] == 0:
            table[at] = ret_ip
            table[at + 1] = 1
            return 0
    fp.missed += 1
    return 1


@native
def record(fp: ptr[Probe], ip: u64, ret_ip: u64, regs: ptr[Regs], data: ptr[u64]) -> i32:
    n = fp.hits & 3
    fp.last[n * 4] = ip
    fp.last[n * 4 + 1] = regs.di
    fp.last[n * 4 + 2] = regs.si
    fp.last[n * 4 + 3] = rdtsc()
    fp.hits += 1
    return 0


@native
def filtered(fp: ptr[Probe], ip: u64, ret_ip: u64, regs: ptr[Regs], data: ptr[u64]) -> i32:
    fd = cast(i32, regs.di)
    if fp.low <= fd < fp.high and (regs.dx & 1 != 0 or regs.si == 0):
        atomic_add(addressof(counter), 1, "relaxed")
        return 1
    return 0


@native
def checksum(fp: ptr[Probe], ip: u64, ret_ip: u64, regs: ptr[Regs], data: ptr[u64]) -> i32:
    hash: u32 = 0
    for i in range(16):
        hash = (hash << 5) + hash + cast(u32, fp.last[i])
    fp.missed = cast(u64, hash % 1000)
    return cast(i32, hash & 1)
