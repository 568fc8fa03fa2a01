"""How often each instruction runs, by single steps of a traced child: what counts of probes are compared with."""

from __future__ import annotations

import ctypes
import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache

from forked import die_with_parent

from sandbox.native import Unit, addressof, array, cast, i64, native, ptr, syscall, u8, u32, u64, zeroed
from sandbox.native.native_image import NativeImage

Span = tuple[int, int]

_SYS_WAIT4, _SYS_PTRACE = 61, 101
_TRACEME, _PEEKUSER, _SINGLESTEP = 0, 3, 9
_RIP = 16 * 8
_STOPPED = 0x7F
_TRAPPED = signal.SIGTRAP << 8 | _STOPPED


def can_trace() -> bool:
    """Whether this machine lets a process trace its own child."""
    child = os.fork()
    if not child:
        os._exit(not _be_traced())
    return os.waitpid(child, 0)[1] == 0


def _be_traced() -> bool:
    return ctypes.CDLL(None).ptrace(_TRACEME, 0, None, None) == 0


@native
def repeats(ip: u64, previous: u64) -> u64:
    """Whether this is another round of an instruction with a rep prefix. Text is where it is in the child."""
    first = cast(ptr[u8], ip)[0]
    return 1 if ip == previous and first & 0xFE == 0xF2 else 0


@native
def step(child: u64) -> u64:
    """One instruction; how the child stands."""
    status: array[u32, 2] = zeroed
    syscall(_SYS_PTRACE, _SINGLESTEP, cast(i64, child), 0, 0, 0, 0)
    syscall(_SYS_WAIT4, cast(i64, child), cast(i64, addressof(status[0])), 0, 0, 0, 0)
    return cast(u64, status[0])


@native
def step_through(child: u64, low: u64, high: u64, counts: ptr[u32]) -> u64:
    """Step until the child stops otherwise, counting instructions in [low, high); how it stands then."""
    status = step(child)
    where: array[u64, 1] = zeroed
    previous: u64 = 0
    while status == _TRAPPED:
        syscall(_SYS_PTRACE, _PEEKUSER, cast(i64, child), _RIP, cast(i64, addressof(where[0])), 0, 0)
        ip = where[0]
        if low <= ip and ip < high and repeats(ip, previous) == 0:
            counts[ip - low] += 1
        previous = ip
        status = step(child)
    return status


@cache
def _image() -> NativeImage:
    return NativeImage.of(Unit("stepping", (step_through,), bounded=False))


def traced(spans: Sequence[Span], workload: Callable[[], object]) -> Counter[int]:
    """How often each instruction of `spans` runs in the workload, where `can_trace()`."""
    image, cpus = _image(), os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cpus)})  # the two of them take turns anyway
    try:
        return _traced(image, spans, workload)
    finally:
        os.sched_setaffinity(0, cpus)


def _traced(image: NativeImage, spans: Sequence[Span], workload: Callable[[], object]) -> Counter[int]:
    child = os.fork()
    if not child:
        die_with_parent(signal.SIGKILL)
        _be_traced()
        os.kill(os.getpid(), signal.SIGSTOP)
        workload()
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    os.waitpid(child, 0)
    try:
        return _steps(image, child, spans)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _steps(image: NativeImage, child: int, spans: Sequence[Span]) -> Counter[int]:
    low, high = min(start for start, _ in spans), max(end for _, end in spans)
    counts = (ctypes.c_uint32 * (high - low))()
    status = image.call("step_through", child, low, high, ctypes.addressof(counts)) & 0xFFFF_FFFF
    assert os.WIFSTOPPED(status) and os.WSTOPSIG(status) == signal.SIGSTOP, f"the traced child ended: {status:#x}"
    found = {at: counts[at - low] for start, end in spans for at in range(start, end) if counts[at - low]}
    return Counter(found)
