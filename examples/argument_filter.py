"""Which reads are worth a look? The entry handler looks at an argument; only large reads get an exit handler."""

from __future__ import annotations

import fprobe
import sandbox
import sandbox.demo
from sandbox.native import i32, ptr, u64

LARGE = 300
short_reads = fprobe.Array(u64, 1)


@fprobe.native
def large_reads(fp, ip, ret_ip, regs, data: ptr[u64]) -> i32:
    data[0] = regs.dx  # the third argument: how much is wanted
    return 0 if regs.dx >= LARGE else 1


@fprobe.native
def read_done(fp, ip, ret_ip, regs, data: ptr[u64]):
    if regs.ax != data[0]:
        short_reads[0] += 1


if __name__ == "__main__":
    module = sandbox.load(sandbox.demo.source(), name="demo")
    with fprobe.attach("vfs_read", entry=large_reads, exit=read_done) as probe:
        module["demo_main"](100)
    print(f"{probe.hits} reads, {short_reads[0]} large ones came back short")
