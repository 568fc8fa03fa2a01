"""A counting kprobe on every instruction of some code, and a tracer's counts to compare with."""

from __future__ import annotations

import ctypes
import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import fprobe
import kprobes
from kprobes import aggregate
from kprobes.aggregate import original_text
from kprobes.boundaries import boundaries
from kprobes.jump.optimize import Extent, set_extent, why_not
from kprobes.patching import patching
from sandbox.native import u64

Span = tuple[int, int]
MODES = ("int3", "boosted", "optimized", "optimized-plain")

hits = fprobe.Hash(u64, u64, size=1 << 17)


@kprobes.native
def count_by_ip(p, regs):
    hits[regs.ip - 1] += 1


@kprobes.native
def count_by_address(p, regs):
    hits[p.address] += 1


class Everything:
    """kprobes on all instructions of `spans`, or every `stride`th; `refused`: errno and instruction of those without."""

    def __init__(self, spans: Sequence[Span], mode: str, stride: int = 1) -> None:
        self.mode = mode
        self.refused: dict[int, OSError] = {}
        self.probes: list[Any] = []
        aggregate.preemptible = mode == "int3"
        kprobes.set_kprobes_optimization(int(mode.startswith("optimized")))
        set_extent(Extent.DENSE)
        handler = count_by_address if mode == "optimized-plain" else count_by_ip
        with patching():
            for start, end in spans:
                for address in boundaries(original_text, start, end)[::stride]:
                    self._register(kprobes.kprobe(addr=address, pre_handler=handler))
        kprobes.wait_for_kprobe_optimizer()

    def _register(self, p: Any) -> None:
        try:
            kprobes.register_kprobe(p)
        except OSError as error:
            self.refused[p.addr] = error
        else:
            self.probes.append(p)

    @property
    def optimized(self) -> float:
        """The share of probes that have become jumps; each of the others has a reason."""
        without = [p for p in self.probes if not p.aggregate.optimized]
        if self.mode.startswith("optimized"):
            unexplained = [hex(p.addr) for p in without if not p.aggregate.on_ftrace and why_not(p.addr) is None]
            assert not unexplained, unexplained[:10]
        return 1 - len(without) / len(self.probes)

    def counts(self, workload: Callable[[], object]) -> tuple[object, Counter[int]]:
        """What the workload returns, and the hits of each address."""
        hits.clear()
        result = workload()
        return result, Counter(dict(hits.items()))

    def missed(self) -> int:
        return sum(p.nmissed for p in self.probes)

    def close(self) -> None:
        kprobes.unregister_kprobes(self.probes)
        kprobes.wait_for_kprobe_optimizer()
        for p in self.probes:
            assert ctypes.string_at(p.addr, 1) == original_text(p.addr, 1), hex(p.addr)


class CannotTrace(Exception):
    """This machine does not let a process trace its own child."""


_TRACEME, _PEEKUSER, _CONT, _SINGLESTEP = 0, 3, 7, 9
_RIP = 16 * 8
_REPEATED = (0xF2, 0xF3)
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


def traced(spans: Sequence[Span], workload: Callable[[], object]) -> Counter[int]:
    """How often each instruction of `spans` runs in the workload, by single steps of a child."""
    child = os.fork()
    if not child:
        if _libc.ptrace(_TRACEME, 0, None, None) < 0:
            os._exit(3)
        os.kill(os.getpid(), signal.SIGSTOP)
        workload()
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if not os.WIFSTOPPED(status):
        raise CannotTrace(f"status {status}")
    try:
        return _steps(child, spans)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _steps(child: int, spans: Sequence[Span]) -> Counter[int]:
    low, high = min(start for start, _ in spans), max(end for _, end in spans)
    found: Counter[int] = Counter()
    previous = 0
    _libc.ptrace(_SINGLESTEP, child, None, None)
    while True:
        _, status = os.waitpid(child, 0)
        if not os.WIFSTOPPED(status) or os.WSTOPSIG(status) == signal.SIGSTOP:
            assert os.WIFSTOPPED(status), f"the traced child ended: {status}"
            return Counter({ip: n for ip, n in found.items() if any(start <= ip < end for start, end in spans)})
        ip = _libc.ptrace(_PEEKUSER, child, _RIP, None)
        if low <= ip < high and (ip != previous or ctypes.string_at(ip, 1)[0] not in _REPEATED):
            found[ip] += 1
        previous = ip
        _libc.ptrace(_SINGLESTEP, child, None, None)
