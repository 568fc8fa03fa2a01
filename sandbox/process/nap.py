"""Native: a short sleep, for polling."""

from __future__ import annotations

from sandbox.native import addressof, array, cast, i64, native, syscall, u64, void, zeroed
from sandbox.x86_64.syscalls import SYS_NANOSLEEP

_NAP = 50_000
"""Nanoseconds."""


@native
def nap() -> void:
    time: array[u64, 2] = zeroed
    time[0] = 0
    time[1] = _NAP
    syscall(SYS_NANOSLEEP, cast(i64, addressof(time[0])), 0, 0, 0, 0, 0)
