"""The native half of clocks: time stamps without locks and without waiting."""

from __future__ import annotations

from sandbox.native import *
from sandbox.x86_64.syscalls import SYS_CLOCK_GETTIME

SCALED, SYSTEM, COUNTER, TSC = 0, 1, 2, 3
"""Kinds of clocks: the scaled time-stamp counter; clock_gettime; the number of stamps taken; the bare time-stamp counter."""

SHIFT = 32
MAX_MULT = (1 << SHIFT) - 1
LONGEST = 1 << 34
"""Maximum of ticks between two fits: some seconds."""
JUMP = 10_000_000
"""Nanoseconds ahead of ours beyond which the system's clock counts as having jumped, as after a suspend, not as slewed."""
MONOTONIC, THREAD_CPUTIME = 1, 3
"""Clocks of `system_now`."""
_SECOND = 1_000_000_000
_RETRIES = 8


@struct
class Segment(Structure):
    """A linear piece of a clock: its time is `base`, modulo 2^64, and factor / 2^64 for each tick of the counter."""

    base: u64
    factor: u64  # a rate in units of 2^-32, times 2^32: so the time takes the upper half of one product


SEGMENTS = 1024
"""A power of two. A time stamp is wrong only if this many fits, some two hours, pass between two instructions that read it."""
_END = SEGMENTS * Segment.size


@struct
class ClockState(Structure):
    """A clock. `sequence` is the offset of the segment in use; a new one is written to the next place, in a circle.

    A signal handler that interrupts the writer therefore finds a valid segment, as with the kernel's seqcount_latch.
    """

    sequence: u64
    kind: u64
    clock_id: u64  # SYSTEM
    divisor: u64  # SYSTEM: nanoseconds in a unit
    counter: u64
    fitted: u64  # ticks when the segment in use was begun
    fitting: u64  # ticks when a thread began a new fit; 0: none is in progress
    interval: u64  # ticks until the next fit
    anchor_ticks: u64  # an earlier moment, since which the rate is measured
    anchor_time: u64
    segments: array[Segment, 1024]


@native(inline=True)
def scale(ticks: u64, mult: u64) -> u64:
    """ticks * mult / 2^32, also if the product exceeds 64 bits. mult < 2^32."""
    return multiply_high(ticks, mult << SHIFT)


@native(inline=True)
def segment_at(clock: ptr[ClockState], sequence: u64) -> ptr[Segment]:
    return cast(ptr[Segment], addressof(cast(ptr[u8], addressof(clock.segments[0]))[sequence]))


@native(inline=True)
def scaled_by(clock: ptr[ClockState], sequence: u64, ticks: u64) -> u64:
    """The time at `ticks` by the segment of that sequence. Valid only if the clock's sequence is still the same afterwards."""
    segment = segment_at(clock, sequence)
    return multiply_high(ticks, volatile_load(addressof(segment.factor))) + volatile_load(addressof(segment.base))


@native
def scaled_now(clock: ptr[ClockState]) -> u64:
    """The time by the segment in use. Reads again if the segment is replaced during the read."""
    stamp: u64 = 0
    for _attempt in range(_RETRIES):
        sequence = volatile_load(addressof(clock.sequence))
        stamp = scaled_by(clock, sequence, rdtsc())
        if likely(volatile_load(addressof(clock.sequence)) == sequence):
            return stamp
    return stamp


@native
def rate(time: u64, ticks: u64) -> u64:
    """time * 2^32 / ticks, with as many bits as fit."""
    excess = 32 - min(leading_zeros(time), 32)
    return (time >> excess << SHIFT) // max(ticks >> excess, 1)


@native
def steered(mult: u64, error: i64, ticks: u64) -> u64:
    """A rate that corrects `error`, the system's clock minus ours, within `ticks`; at most 0.1 % from `mult`."""
    most = cast(i64, mult >> 10)
    size = cast(u64, error if error >= 0 else -error)
    change = cast(i64, min(rate(size, ticks), cast(u64, most)))
    return cast(u64, cast(i64, mult) + (change if error >= 0 else -change))


@native
def system_now(clock_id: u64) -> u64:
    """clock_gettime in nanoseconds, as a system call, which is allowed everywhere."""
    time: array[u64, 2] = zeroed
    syscall(SYS_CLOCK_GETTIME, cast(i64, clock_id), cast(i64, addressof(time[0])), 0, 0, 0, 0)
    return time[0] * _SECOND + time[1]


@native
def read_both(clock: ptr[ClockState], ticks: ptr[u64]) -> u64:
    """The system's clock and the counter at the same moment: the closest of several readings."""
    best: u64 = 0xFFFF_FFFF_FFFF_FFFF
    time: u64 = 0
    for _sample in range(4):
        before = rdtsc()
        now = system_now(clock.clock_id)
        took = rdtsc() - before
        if took < best:
            best = took
            time = now
            ticks[0] = before + took // 2
    return time


@native
def begin_segment(clock: ptr[ClockState], ticks: u64, time: u64, mult: u64) -> void:
    """Continue the clock from `time` at another rate. The segment in use stays valid until the new one is complete."""
    following = clock.sequence + sizeof(Segment) & _END - 1
    segment = segment_at(clock, following)
    segment.base = time - scale(ticks, mult)
    segment.factor = mult << SHIFT
    store(addressof(clock.sequence), following, "release")


@native
def refit(clock: ptr[ClockState]) -> void:
    """Fit the clock to the system's clock again. It jumps only if the system's clock has jumped ahead."""
    place: array[u64, 1] = zeroed
    time = read_both(clock, addressof(place[0]))
    ticks = place[0]
    segment = segment_at(clock, clock.sequence)
    ours = segment.base + multiply_high(ticks, segment.factor)
    error = cast(i64, time - ours)
    clock.interval = min(clock.interval * 2, LONGEST)
    measured = rate(time - clock.anchor_time, ticks - clock.anchor_ticks)
    if error > JUMP:
        begin_segment(clock, ticks, time, segment.factor >> SHIFT)
    else:
        begin_segment(clock, ticks, ours, min(steered(measured, error, clock.interval), MAX_MULT))
    if error > JUMP or ticks - clock.anchor_ticks > 4 * LONGEST:
        clock.anchor_ticks = ticks
        clock.anchor_time = time
    clock.fitted = ticks


@native
def keep_fitted(clock: ptr[ClockState]) -> void:
    """Fit a scaled clock again if that is due. One thread does; if siglongjmp has ended its fit, another thread takes over."""
    if clock.kind != SCALED or rdtsc() - clock.fitted < clock.interval:
        return
    before = load(addressof(clock.fitting), "relaxed")
    now = rdtsc()
    if before != 0 and now - before < LONGEST:
        return
    if atomic_cas(addressof(clock.fitting), before, now, "acq_rel"):
        refit(clock)
        store(addressof(clock.fitting), 0, "release")


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
