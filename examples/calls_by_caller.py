"""Who copies from user memory, and how much? Calls and bytes by the place that they come from."""

from __future__ import annotations

import fprobe
import sandbox
import sandbox.demo
from ftrace import map_lines
from sandbox.native import struct, u64


@struct
class Caller:
    calls: u64
    copied: u64


callers = fprobe.Hash(u64, Caller, size=256)


@fprobe.native
def copying(fp, ip, ret_ip, regs, data):
    callers[ret_ip].calls += 1
    callers[ret_ip].copied += regs.dx  # the third argument: the size


if __name__ == "__main__":
    module = sandbox.load(sandbox.demo.source(), name="demo")
    with fprobe.attach("copy_*_user", entry=copying) as probe:
        module["demo_main"](100)
    print(f"{probe.hits} copies")
    print("\n".join(map_lines(callers, sandbox.symbol_table.describe)))
