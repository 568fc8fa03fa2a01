"""A module that is made and dropped over and over: handlers of every kind, and the maps of the module that they use."""

from __future__ import annotations

import fprobe
import kprobes
from sandbox.native import i32, native, ptr, struct, u64


@struct
class Pair:
    calls: u64
    total: u64


counts = fprobe.Array(u64, 8)
shared_counts = fprobe.Array(u64, 8, shared=True)
by_ip = fprobe.Hash(u64, u64, 16)
pairs = fprobe.Hash(u64, Pair, 16, shared=True)
sizes = fprobe.Histogram()
rows = fprobe.Histogram(65, rows=3)
depth = fprobe.per_task(u64)
last = fprobe.per_task(Pair)


@native(noinline=True)
def add(value: u64) -> u64:
    shared_counts[1] += value
    return value


@fprobe.native
def on_entry(fp, ip, ret_ip, regs, data: ptr[u64]) -> i32:
    counts[0] += add(1)
    by_ip[ip] += 1
    depth.value += 1
    data[0] = regs.di
    return 0


@fprobe.native
def on_exit(fp, ip, ret_ip, regs, data: ptr[u64]):
    sizes.add(regs.ax)
    rows.add(1, data[0])
    last.calls += 1


@fprobe.native
def both(fp, ip, ret_ip, regs, data):
    pairs[ip].calls += 1


@kprobes.native
def pre(p, regs):
    counts[2] += 1


@kprobes.native
def pre_with_regs(p, regs) -> i32:
    sizes.add(regs.di)
    return 0


@kprobes.native
def post(p, regs, flags):
    pairs[regs.ip].total += 1


@kprobes.native
def on_call(ri, regs) -> i32:
    depth.value += 1
    return 0


@kprobes.native
def on_return(ri, regs):
    rows.add(2, regs.ax)
