"""Counts and times of calls in memory that another process reads while they happen, or after this one was killed.

The memory is a file in equal parts, all of them mapped: a process counts in its own, each thread in a row of its own, which
is an open hash table of cells.

The child of a fork, also of one that C code makes, takes another part when it first counts.
"""

from __future__ import annotations

from ftrace.hit.account import (
    BY_CALLER,
    BY_THREAD,
    BY_VALUE,
    CPU,
    SELF,
    TIMED_CELL,
    WALL,
    Account,
    Cell,
    TimedCall,
    TimedCell,
    cell_of,
    count_duration,
    row_of,
    self_time,
)
from ftrace.hit.nodes import true_parent
from ftrace.hit.records import Probe
from ftrace.hit.ring_buffer.clock_state import THREAD_CPUTIME, system_now
from ftrace.hit.ring_buffer.layout import MAGIC
from ftrace.hit.ring_buffer.pool import FULL
from ftrace.hit.ring_buffer.records import Ring, RingBuffer
from sandbox.native import *
from sandbox.threads.system_calls import nap
from sandbox.threads.tasks import current
from sandbox.x86_64.syscalls import SYS_GETPID, SYS_MMAP, SYS_MREMAP

PATIENCE = 20_000
"""Naps, some seconds in all, for which a thread waits until another one has claimed the process's part."""
UNCLAIMED, CLAIMING = 1, 2

_MAYMOVE_FIXED = 3
"""Flags of mremap. With 0 as the old size it maps shared memory once more."""
_READ_WRITE, _PRIVATE_THERE = 3, 0x4032
"""Protection and flags of mmap: private memory, of no file, at the address, without a reservation."""


@struct
class CallTable(Structure):
    """The table of a process's counts."""

    account: Account
    parts: u64  # address of the first part
    length: u64  # of a part
    count: u64  # of parts
    rows_at: u64  # offset of the rows in a part
    next: u64  # address of the number of the next free part
    forked: u64  # address of the number of forks of which the children count, too
    part: u64  # the number of this process's part
    claim: u64  # UNCLAIMED: the first hit takes a part; CLAIMING: a thread does
    maps: u64  # address of the memory of maps, in every process of the program
    maps_at: u64  # its offset in a part
    maps_size: u64  # 0: there are none
    in_children: u64  # UNCLAIMED: children of a fork count, too; 0: they do not
    calls: RingBuffer  # the records of calls; its ring is null if there are none, and in a process without a part
    ring: Ring
    ring_at: u64  # offset in a part of the ring buffer's memory; 0: calls are not recorded
    ring_base: u64  # address of the memory that `ring` refers to
    ring_pages: u64


@struct
class Part(Structure):
    """The beginning of a part."""

    pid: u64
    parent: u64  # the number of the part of the process that forked, plus 1; 0: there is none
    has_lost_maps: u64  # 1: what the process's maps contain is lost, since mremap is denied


table_address = global_var(u64, 0, name="call_table")


@native
def begin_ring(table: ptr[CallTable], base: u64, pid: u64) -> void:
    """Record calls into the memory at `base`, all of it zero (ftrace.hit.ring_buffer.layout.Geometry)."""
    ring = addressof(table.ring)
    moved = base - table.ring_base
    ring.slots += moved
    ring.data += moved
    ring.metas += moved
    ring.bitmap += moved
    ring.hint = 0
    table.ring_base = base
    for word in range(ring.words):
        cast(ptr[u64], ring.bitmap)[word] = FULL
    header = cast(ptr[u64], base)
    header[1] = table.ring_pages
    header[2] = pid
    store(addressof(header[0]), MAGIC, "release")
    table.calls.live = ring
    table.calls.ring = ring


@native(export=True)
def table_take(address: u64, parent: u64) -> u64:
    """Take a part for this process; whether there was one. `parent`: the number of its parent's, plus 1."""
    table = cast(ptr[CallTable], address)
    number = atomic_add(cast(ptr[u64], table.next), 1)
    table.part = number
    if number >= table.count:
        table.account.rows = 0
        return 0
    start = table.parts + number * table.length
    part = cast(ptr[Part], start)
    part.pid = cast(u64, syscall(SYS_GETPID, 0, 0, 0, 0, 0, 0))
    part.parent = parent
    if table.ring_at != 0:
        begin_ring(table, start + table.ring_at, part.pid)
    table.account.rows = start + table.rows_at
    return 1


@native(export=True, noinline=True)
def table_claim(address: u64) -> u64:
    """Take a part for the child of a fork, which has had none so far; whether this process has one now."""
    table = cast(ptr[CallTable], address)
    if atomic_cas(addressof(table.claim), UNCLAIMED, CLAIMING):
        table_take(address, table.part + 1)
        store(addressof(table.claim), 0, "release")
    for _ in range(PATIENCE):
        if load(addressof(table.claim), "acquire") != CLAIMING:
            break
        nap()
    return 0 if table.account.rows == 0 else 1


@native(inline=True)
def has_part(table: ptr[CallTable]) -> bool_:
    return table.account.rows != 0 or (table.claim != 0 and table_claim(cast(u64, table)) != 0)


@native
def timed_cell(table: ptr[CallTable], ip: u64, origin: u64) -> ptr[Cell]:
    """The running thread's cell for calls of the function at `ip`; null if there is no place for it.

    `origin`: the caller, or the value that calls are told apart by.
    """
    if not has_part(table):
        return null
    by: u64 = 0
    if table.account.by == BY_CALLER or table.account.by == BY_VALUE:
        by = origin
    if table.account.by == BY_THREAD:
        by = cast(u64, current().tid)
    return cell_of(addressof(table.account), TIMED_CELL, ip, by)


@native(export=True)
def table_in_child() -> void:
    """In the child of a fork: most only execute another program. Maps have to be the child's own at once."""
    if table_address == 0:
        return
    table = cast(ptr[CallTable], table_address)
    table.account.rows = 0
    table.calls.ring = null
    table.claim = table.in_children
    if table.in_children != 0:
        atomic_add(cast(ptr[u64], table.forked), 1)
    if table.maps_size != 0 and table_claim(table_address) != 0:
        part = table.parts + table.part * table.length
        own = cast(i64, part + table.maps_at)
        maps = cast(i64, table.maps)
        size = cast(i64, table.maps_size)
        if syscall(SYS_MREMAP, own, 0, size, _MAYMOVE_FIXED, maps, 0) < 0:  # else they would be counted in the parent's
            syscall(SYS_MMAP, maps, size, _READ_WRITE, _PRIVATE_THERE, -1, 0)
            cast(ptr[Part], part).has_lost_maps = 1


@native(inline=True)
def clocks_begin(table: ptr[CallTable], measures: u64, data: ptr[TimedCall], now: u64) -> void:
    """Note the times of an entry. `now`: its ticks; 0: read here, after all other clocks."""
    if measures >= SELF and table.account.rows != 0:
        data.inner = row_of(addressof(table.account)).inner
    if measures >= CPU:
        data.cpu = system_now(THREAD_CPUTIME)
    data.entered = rdtsc() if now == 0 else now


@native(inline=True)
def count_begin(table: ptr[CallTable], measures: u64, ip: u64, caller: u64, data: ptr[TimedCall], now: u64) -> void:
    """Count an entry. `caller`: as at the return; `data`: null if the return is not waited for; `now`: as clocks_begin()."""
    cell = timed_cell(table, ip, caller)
    if cell != null:
        cell.hits += 1
        if data == null:
            cell.missed += 1
    if data != null:
        clocks_begin(table, measures, data, now)


@native(inline=True)
def call_begins(table: ptr[CallTable], measures: u64, ip: u64, ret_ip: u64, data: ptr[TimedCall]) -> void:
    """Count an entry that begins now."""
    caller = ret_ip
    if table.account.by == BY_CALLER:
        caller = true_parent(current(), ret_ip)
    count_begin(table, measures, ip, caller, data, 0)


@native(inline=True)
def call_ends(
    table: ptr[CallTable], measures: u64, ip: u64, ret_ip: u64, data: ptr[TimedCall], ticks: u64
) -> ptr[Cell]:
    """Count the time from the entry to the return. The cell that has it; null if there was no place."""
    cpu: u64 = 0
    own: u64 = 0
    if measures >= CPU:
        cpu = system_now(THREAD_CPUTIME) - data.cpu
    cell = timed_cell(table, ip, ret_ip)
    if measures >= SELF and table.account.rows != 0:
        own = self_time(row_of(addressof(table.account)), data.inner, ticks)
    if cell != null:
        count_duration(cell, ticks)
        if measures >= SELF:
            cast(ptr[TimedCell], cell).self_total += own
        if measures >= CPU:
            cast(ptr[TimedCell], cell).cpu += cpu
    return cell


@native(cc="preserve_most")
def calls_entry(probe: ptr[Probe], ip: u64, ret_ip: u64, regs: u64, data: ptr[TimedCall]) -> i32:
    call_begins(cast(ptr[CallTable], probe.action), WALL, ip, ret_ip, data)
    return 0


@native(cc="preserve_most")
def calls_exit(probe: ptr[Probe], ip: u64, ret_ip: u64, regs: u64, data: ptr[TimedCall]) -> void:
    call_ends(cast(ptr[CallTable], probe.action), WALL, ip, ret_ip, data, rdtsc() - data.entered)


@native(cc="preserve_most")
def self_entry(probe: ptr[Probe], ip: u64, ret_ip: u64, regs: u64, data: ptr[TimedCall]) -> i32:
    call_begins(cast(ptr[CallTable], probe.action), SELF, ip, ret_ip, data)
    return 0


@native(cc="preserve_most")
def self_exit(probe: ptr[Probe], ip: u64, ret_ip: u64, regs: u64, data: ptr[TimedCall]) -> void:
    call_ends(cast(ptr[CallTable], probe.action), SELF, ip, ret_ip, data, rdtsc() - data.entered)


@native(cc="preserve_most")
def cpu_entry(probe: ptr[Probe], ip: u64, ret_ip: u64, regs: u64, data: ptr[TimedCall]) -> i32:
    call_begins(cast(ptr[CallTable], probe.action), CPU, ip, ret_ip, data)
    return 0


@native(cc="preserve_most")
def cpu_exit(probe: ptr[Probe], ip: u64, ret_ip: u64, regs: u64, data: ptr[TimedCall]) -> void:
    call_ends(cast(ptr[CallTable], probe.action), CPU, ip, ret_ip, data, rdtsc() - data.entered)


@native(inline=True)
def arguments_in(data: ptr[TimedCall], measures: u64) -> ptr[u64]:
    """Where a call's data have the registers of its arguments: behind what it measures. Null if there are no data."""
    if data == null:
        return null
    return addressof(cast(ptr[u64], data)[1 + measures])


HANDLERS = {WALL: "calls", SELF: "self", CPU: "cpu"}
"""The first word of the names of the handlers, by what they measure."""
CALL_SIZES = {WALL: 8, SELF: 16, CPU: TimedCall.size}
"""Bytes of a call's data."""
FUNCTIONS = (
    *(table_take, table_claim, table_in_child),
    *(calls_entry, calls_exit, self_entry, self_exit, cpu_entry, cpu_exit),
)
