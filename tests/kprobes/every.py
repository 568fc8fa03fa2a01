"""A counting kprobe on many instructions at once."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import fprobe
import kprobes
from kprobes import aggregate
from kprobes.aggregate import original_text
from kprobes.jump.optimize import Extent, set_extent, why_not
from kprobes.patching import patching
from sandbox.native import u64

MODES = ("int3", "boosted", "optimized", "optimized-plain")

hits = fprobe.Hash(u64, u64, size=1 << 17)


@kprobes.native
def count_by_ip(p, regs):
    hits[regs.ip - 1] += 1


@kprobes.native
def count_by_address(p, regs):
    hits[p.address] += 1


class Probed:
    """kprobes at all of `addresses`; `refused`: why there is none at some.

    `dense`: a jump may borrow from its neighbours' jumps.
    """

    def __init__(self, addresses: Iterable[int], mode: str, dense: bool) -> None:
        self.mode = mode
        self.refused: dict[int, OSError] = {}
        self.probes: list[Any] = []
        aggregate.preemptible = mode == "int3"
        kprobes.set_kprobes_optimization(int(mode.startswith("optimized")))
        set_extent(Extent.DENSE if dense else Extent.ALONE)
        handler = count_by_address if mode == "optimized-plain" else count_by_ip
        with patching():
            for address in addresses:
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
    def jumps(self) -> int:
        """How many have become jumps; each of the others has a reason."""
        without = [p for p in self.probes if not p.aggregate.optimized]
        if self.mode.startswith("optimized"):
            unexplained = [hex(p.addr) for p in without if not p.aggregate.on_ftrace and why_not(p.addr) is None]
            assert not unexplained, unexplained[:10]
        return len(self.probes) - len(without)

    @property
    def not_on_ftrace(self) -> int:
        """How many could become jumps, but for the rules."""
        return sum(not p.aggregate.on_ftrace for p in self.probes)

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
