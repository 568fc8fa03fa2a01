"""A counting kprobe on many instructions at once."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import fprobe
import kprobes
from kprobes import Extent, checks, set_extent, why_not
from kprobes.breakpoint.patching import patching
from kprobes.place import original_text
from sandbox.native import u64

MODES = ("int3", "boosted", "optimized", "optimized-plain")


def set_mode(mode: str, dense: bool) -> None:
    """What becomes of probes from now on. At an address that has been probed before some of it stays as it was then.

    `dense`: a jump may borrow from its neighbours' jumps.
    """
    checks.preemptible = mode == "int3"
    kprobes.set_kprobes_optimization(int(mode.startswith("optimized")))
    set_extent(Extent.DENSE if dense else Extent.ALONE)


class Counting:
    """Handlers that count hits by address, of up to `size` of them."""

    def __init__(self, size: int) -> None:
        hits = fprobe.Hash(u64, u64, size=size)

        @kprobes.native
        def by_ip(p, regs):
            hits[regs.ip - 1] += 1

        @kprobes.native
        def by_address(p, regs):
            hits[p.address] += 1

        self.hits = hits
        self._by_ip, self._by_address = by_ip, by_address
        for handler in (by_ip, by_address):
            _compile(handler)

    def handler(self, mode: str) -> Any:
        """One that reads registers, or, where the mode is called plain, none."""
        return self._by_address if mode.endswith("plain") else self._by_ip

    def counts(self, workload: Callable[[], object]) -> tuple[object, Counter[int]]:
        """What the workload returns, and the hits of each address."""
        self.hits.clear()
        result = workload()
        assert self.hits.dropped == 0
        return result, Counter(dict(self.hits.items()))


def _compile(handler: Any) -> None:
    """Now, rather than in each fork."""
    p = kprobes.kprobe(symbol_name="libc:labs", pre_handler=handler)
    kprobes.register_kprobe(p)
    kprobes.unregister_kprobe(p)


@cache
def counting(bits: int) -> Counting:
    """One for up to 2 ** bits addresses, made before this process forks."""
    set_mode("int3", dense=False)
    return Counting(1 << bits)


class Probed:
    """kprobes at all of `addresses`; `refused`: why there is none at some."""

    def __init__(self, addresses: Iterable[int], mode: str, counting: Counting) -> None:
        self.mode = mode
        self.refused: dict[int, OSError] = {}
        self.probes: list[Any] = []
        handler = counting.handler(mode)
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
        without = [p for p in self.probes if not p.place.optimized]
        if self.mode.startswith("optimized"):
            unexplained = [hex(p.addr) for p in without if not p.place.on_ftrace and why_not(p.addr) is None]
            assert not unexplained, unexplained[:10]
        return len(self.probes) - len(without)

    @property
    def not_on_ftrace(self) -> int:
        """How many could become jumps, but for the rules."""
        return sum(not p.place.on_ftrace for p in self.probes)

    @property
    def boosted(self) -> int:
        """How many of them jump back from their slots while they are breakpoints."""
        return sum(bool(p.place.record.boosted) for p in self.probes)

    def missed(self) -> int:
        return sum(p.nmissed for p in self.probes)

    def close(self) -> None:
        kprobes.unregister_kprobes(self.probes)
        kprobes.wait_for_kprobe_optimizer()
        for p in self.probes:
            assert ctypes.string_at(p.addr, 1) == original_text(p.addr, 1), hex(p.addr)
