"""Native handlers for a process that is attached to: they count."""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import fprobe
from sandbox.native import i32, native, ptr, u64, void

counts = fprobe.Array(u64, size=2)


@native(cc="preserve_most")
def entered(fp: u64, ip: u64, ret_ip: u64, regs: u64, data: ptr[u64]) -> i32:
    counts[0] += 1
    return 0


@native(cc="preserve_most")
def left(fp: u64, ip: u64, ret_ip: u64, regs: u64, data: ptr[u64]) -> void:
    counts[1] += 1
