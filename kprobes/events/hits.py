"""Native handlers that count the hits of kprobe events, and the counts by probe."""

from __future__ import annotations

from ftrace.maps import Hash
from kprobes.native_decorator import native
from sandbox.native import cast, u64

_MOST_PROBES = 4096
_hits = Hash(u64, u64, _MOST_PROBES)


@native
def count_hit(p, regs):  # type: ignore[no-untyped-def]
    """A kprobe's hit."""
    _hits[cast(u64, p)] += 1  # type: ignore[index]


@native
def count_return(ri, regs):  # type: ignore[no-untyped-def]
    """A kretprobe's return."""
    _hits[cast(u64, ri.rp)] += 1  # type: ignore[index]


def hits_of(native_half: int) -> int:
    """The hits of all probes so far whose native half has been at this address."""
    return int(_hits.get(native_half, 0))
