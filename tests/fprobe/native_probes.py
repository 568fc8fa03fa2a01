"""Handlers that the tests of native handlers attach, and the maps that they fill."""

from __future__ import annotations

import fprobe
from ftrace.hit.records import Probe
from sandbox.native import (
    addressof,
    array,
    cast,
    i32,
    i64,
    null,
    probe_read,
    probe_read_str,
    ptr,
    struct,
    u8,
    u32,
    u64,
    zeroed,
)


@struct
class Seen:
    calls: u64
    sizes: array[u64, 4]
    least: i64


by_ip = fprobe.Hash(u64, u64, 16)
narrow = fprobe.Hash(u64, u64, 2)
seen = fprobe.Hash(u32, Seen, 8)
cells = fprobe.Array(u64, 4)
totals = fprobe.Array(u64, 2, shared=True)
sizes = fprobe.Histogram()
steps = fprobe.Histogram(4, step=10, low=100)
rows = fprobe.Histogram(65, rows=3)
depth = fprobe.per_task(u64)


@fprobe.native
def count_all(fp, ip, ret_ip, regs, data) -> i32:
    by_ip[ip] += 1
    cells[1] += 2
    totals[0] += 1
    depth.value += 1
    return 0


@fprobe.native
def sort_argument(fp, ip, ret_ip, regs, data):
    """No result type and no value: an entry handler that returns 0, or an exit handler."""
    value = regs.di
    if value == 0:
        return
    narrow[value] += 1
    cells[value] += 1
    sizes.add(value)
    steps.add(value)
    rows.add(value, value)
    seen[7].calls += 1
    seen[7].sizes[1] += value
    seen[7].least -= 1


@fprobe.native
def cancel(fp, ip, ret_ip, regs, data):
    """Returns a value: an entry handler."""
    return 1


@fprobe.native
def remember(fp, ip, ret_ip, regs, data: ptr[u64]):
    data[0] = regs.di


@fprobe.native
def recall(fp, ip, ret_ip, regs, data: ptr[u64]):
    cells[0] += data[0]


@fprobe.native
def is_missing(fp, ip, ret_ip, regs, data: ptr[u64]) -> i32:
    if data == null:
        cells[2] += 1
    return 0


@fprobe.native
def read_argument(fp, ip, ret_ip, regs, data):
    """What `di` points to: the number of bytes copied and the first of them, or the error."""
    word: array[u64, 2] = zeroed
    word[0] = 99
    copied = probe_read(addressof(word), regs.di, 16)
    if copied == 16:
        cells[0] = word[0]
    elif copied == -14:
        cells[1] += 1
        cells[2] = word[0]


@fprobe.native
def read_text(fp, ip, ret_ip, regs, data):
    text: array[u8, 8] = zeroed
    length = probe_read_str(addressof(text), regs.di, 8)
    cells[0] = 1000
    cells[1] = text_word(text[0], text[1])
    if length < 0:
        cells[2] += 1
    else:
        cells[0] += cast(u64, length)


@fprobe.native
def text_word(first: u8, second: u8) -> u64:
    if first == 0:
        return 0
    return 1 if second == 0 else 2


@fprobe.native
def wrong_ip(fp, ip: u32, ret_ip, regs, data) -> i32:
    return 0


@fprobe.native
def typed(fp: ptr[Probe], ip: u64, ret_ip: u64, regs: u64, data: u64) -> u64:
    return 0


@fprobe.native
def lookups(fp, ip, ret_ip, regs, data):
    """Asking does not make keys."""
    if by_ip.has(regs.di) != 0:
        cells[0] += by_ip.get(regs.di)
    else:
        cells[1] += by_ip.get(regs.di) + 1


common = fprobe.Hash(u64, u64, 512, shared=True)


@fprobe.native
def count_arguments(fp, ip, ret_ip, regs, data):
    """Every argument and the next one, of all threads."""
    common[regs.di] += 1
    common[regs.di + 1] += 1


@fprobe.native
def write_badly(fp, ip, ret_ip, regs, data):
    if probe_read(cast(ptr[u64], regs.di), ip, 8) == -14:
        cells[0] += 1
    if probe_read(cast(ptr[u64], regs.di), ip, 64) == -14:
        cells[1] += 1
    if probe_read_str(cast(ptr[u8], regs.di), ip, 64) == -14:
        cells[2] += 1
    if probe_read(cast(ptr[u64], regs.di), ip, 1 << 17) == -7 and probe_read_str(cast(ptr[u8], ip), ip, 0) == -22:
        cells[3] += 1


@fprobe.native
def blunder(fp, ip, ret_ip, regs, data):
    room: array[u64, 4] = zeroed
    room[regs.di] = 5
    cells[0] = room[0]
    cells[1] = 7 // regs.di if regs.di < 4 else 9
