"""The native half of clocks: the time stamp of an event, without a lock and without waiting for anybody."""

from __future__ import annotations

from sandbox.native import (
    Structure,
    addressof,
    array,
    atomic_add,
    cast,
    i64,
    likely,
    native,
    ptr,
    rdtsc,
    struct,
    syscall,
    u64,
    volatile_load,
    zeroed,
)

SCALED, SYSTEM, COUNTER, TSC = 0, 1, 2, 3
"""Kinds: the time-stamp counter in other units; clock_gettime; the number of stamps taken; the time-stamp counter itself."""

SHIFT = 32
_SYS_CLOCK_GETTIME = 228
_SECOND = 1_000_000_000
_RETRIES = 8


@struct
class Segment(Structure):
    """A stretch of the line that time is taken to be: at `ticks` it is `base`, and it grows by mult / 2^32 a tick."""

    ticks: u64
    base: u64
    mult: u64
    reserved: u64


@struct
class ClockState(Structure):
    """A clock. A new segment is written beside the one in use; the low bit of `sequence` says which is which.

    So a signal's handler that interrupts the writer finds a whole one too, as readers of the kernel's seqcount_latch do.
    """

    sequence: u64
    kind: u64
    clock_id: u64  # SYSTEM
    divisor: u64  # SYSTEM: nanoseconds in a unit
    counter: u64
    fitted: u64  # ticks when a segment was last begun
    fitting: u64  # 1: a thread is at it
    interval: u64  # ticks between fits
    segments: array[Segment, 2]


@native(inline=True)
def scale(ticks: u64, mult: u64) -> u64:
    """ticks * mult / 2^32, also where the product has more than 64 bits. mult < 2^32."""
    return (ticks >> SHIFT) * mult + ((ticks & 0xFFFF_FFFF) * mult >> SHIFT)


@native(inline=True)
def scaled_now(clock: ptr[ClockState]) -> u64:
    """The time by the segment in use; of one that is replaced meanwhile, by the next."""
    stamp: u64 = 0
    for _attempt in range(_RETRIES):
        sequence = volatile_load(addressof(clock.sequence))
        segment = addressof(clock.segments[sequence & 1])
        stamp = segment.base + scale(rdtsc() - segment.ticks, segment.mult)
        if likely(volatile_load(addressof(clock.sequence)) == sequence):
            return stamp
    return stamp


@native
def system_now(clock_id: u64) -> u64:
    """clock_gettime in nanoseconds, by a system call, which may be made anywhere."""
    time: array[u64, 2] = zeroed
    syscall(_SYS_CLOCK_GETTIME, cast(i64, clock_id), cast(i64, addressof(time[0])), 0, 0, 0, 0)
    return time[0] * _SECOND + time[1]


@native
def clock_now(clock: ptr[ClockState]) -> u64:
    """The time by a clock of any kind, in its units."""
    if clock.kind == SCALED:
        return scaled_now(clock)
    if clock.kind == SYSTEM:
        return system_now(clock.clock_id) // clock.divisor
    if clock.kind == COUNTER:
        return atomic_add(addressof(clock.counter), 1, "relaxed") + 1
    return rdtsc()
