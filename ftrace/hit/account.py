"""The account of calls: a table of cells for each thread, with counts and times of the calls of a function.

Actions, the launcher of `fprobe run` and the function profiler count in it. A cell may be followed by buckets of durations; whose
table it is says how large its cells are, as a constant of the compiled code.
"""

from __future__ import annotations

from ftrace.hit.hashing import first_place
from sandbox.native import *
from sandbox.threads.tasks import current

BUCKETS = 240
"""The number of buckets of a timed cell: four for each power of two."""
PROBES = 64
"""The maximum number of places that are probed for a cell."""
BY_NOTHING, BY_CALLER, BY_THREAD, BY_VALUE = 0, 1, 2, 3
"""By what the calls of a function are distinguished. BY_VALUE: by one of their arguments or the result."""
WALL, SELF, CPU = 0, 1, 2
"""What is measured of each call in a timed cell; each includes the one before it."""


@struct
class Cell(Structure):
    """The calls of one function in one thread. Times are in ticks of the time-stamp counter; the profiler's in nanoseconds."""

    ip: u64
    by: u64  # return address, thread or value
    hits: u64
    missed: u64  # calls whose return is not waited for
    returns: u64
    total: u64
    least: u64
    most: u64


@struct
class TimedCell(Structure):
    """The same with a histogram of durations."""

    cell: Cell
    measures: u64  # WALL, SELF or CPU
    self_total: u64
    cpu: u64  # nanoseconds
    reserved: array[u64, 5]
    buckets: array[u64, 240]


@struct
class TimedCall(Structure):
    """A call's data from its entry to its return. A probe that measures less has the first word or two."""

    entered: u64
    inner: u64  # Row.inner at the entry
    cpu: u64


@struct
class Row(Structure):
    """The head of a thread's table, in the place of its first cell."""

    thread: u64
    dropped: u64  # calls that found no cell
    inner: u64  # time of the calls that have returned, without those inside others of them
    reserved: array[u64, 5]


CELL, TIMED_CELL = 64, 2048
assert (Cell.size, Row.size, TimedCell.size) == (CELL, CELL, TIMED_CELL)


@struct
class Account(Structure):
    """The tables of a process's threads."""

    rows: u64  # address of the first thread's row; 0: nowhere
    stride: u64  # from one row to the next
    shift: u64  # 64 less the bits of a cell's number
    by: u64
    measures: u64


@native(inline=True)
def bucket_of(ticks: u64) -> u64:
    """The values below 4 have a bucket each; above, each power of two has four."""
    if ticks < 4:
        return ticks
    bits = 63 - leading_zeros(ticks)
    return (bits - 1) * 4 + ((ticks >> (bits - 2)) & 3)


@native(inline=True)
def row_of(account: ptr[Account]) -> ptr[Row]:
    return cast(ptr[Row], account.rows + cast(u64, current().index) * account.stride)


@native(inline=True)
def cell_of(account: ptr[Account], size: u64, ip: u64, by: u64) -> ptr[Cell]:
    """The running thread's cell of `size` bytes for calls of the function at `ip`; null if there is no place for it."""
    row = row_of(account)
    index = first_place(ip ^ (by << 17), account.shift)
    cell = cast(ptr[Cell], cast(u64, row) + index * size)
    if likely(cell.ip == ip and cell.by == by):  # never the row's head, which begins with a thread's number
        return cell
    return other_cell(account, size, ip, by, index)


@native(inline=True)
def cell_of_function(account: ptr[Account], size: u64, ip: u64) -> ptr[Cell]:
    """The same where calls are distinguished by nothing."""
    index = first_place(ip, account.shift)
    cell = cast(ptr[Cell], cast(u64, row_of(account)) + index * size)
    if likely(cell.ip == ip):
        return cell
    return other_cell(account, size, ip, 0, index)


@native(cc="preserve_most", noinline=True)
def other_cell(account: ptr[Account], size: u64, ip: u64, by: u64, start: u64) -> ptr[Cell]:
    """The cell, if it is not the first that is probed; a new one if there is none yet."""
    row = row_of(account)
    index = start
    mask = (cast(u64, 1) << (64 - account.shift)) - 1
    for _ in range(PROBES):
        cell = cast(ptr[Cell], cast(u64, row) + index * size)
        if index != 0:
            if cell.ip == ip and cell.by == by:
                return cell
            if cell.ip == 0:
                row.thread = cast(u64, current().tid)
                if size == TIMED_CELL:
                    cast(ptr[TimedCell], cell).measures = account.measures
                cell.by = by
                cell.ip = ip
                return cell
        index = (index + 1) & mask
    row.dropped += 1
    return null


@native(inline=True)
def self_time(row: ptr[Row], inner: u64, time: u64) -> u64:
    """The part of a call's time that is not of the calls inside. `inner`: Row.inner at its entry.

    Calls that never return count nowhere: their time is their caller's, but for the calls inside that have returned. On a
    thread that switches stacks calls may overlap, so that there is more time inside than in all.
    """
    inside = row.inner - inner if row.inner > inner else 0
    row.inner = max(row.inner, inner + time)
    return time - inside if time > inside else 0


@native(inline=True)
def count_return(cell: ptr[Cell], ticks: u64) -> void:
    if cell.returns == 0 or ticks < cell.least:
        cell.least = ticks
    if ticks > cell.most:
        cell.most = ticks
    cell.returns += 1
    cell.total += ticks


@native(inline=True)
def count_duration(cell: ptr[Cell], ticks: u64) -> void:
    count_return(cell, ticks)
    bucket = min(bucket_of(ticks), BUCKETS - 1)  # a counter that went back
    cast(ptr[TimedCell], cell).buckets[bucket] += 1
