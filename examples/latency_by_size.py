"""How long do writes take, by how much they write? A histogram for each order of magnitude, in ticks of the CPU's clock."""

from __future__ import annotations

import fprobe
import sandbox
import sandbox.demo
from ftrace import map_lines
from sandbox.native import leading_zeros, ptr, rdtsc, struct, u64

ticks = fprobe.Histogram(rows=65)


@struct
class Started:
    time: u64
    size: u64


@fprobe.native
def write_begins(fp, ip, ret_ip, regs, data: ptr[Started]):
    data.size = regs.dx  # the third argument
    data.time = rdtsc()


@fprobe.native
def write_ends(fp, ip, ret_ip, regs, data: ptr[Started]):
    ticks.add(64 - leading_zeros(data.size), rdtsc() - data.time)


if __name__ == "__main__":
    module = sandbox.load(sandbox.demo.source(), name="demo")
    with fprobe.attach("vfs_write", entry=write_begins, exit=write_ends) as probe:
        module["demo_main"](200)
    print(f"{probe.hits} writes; row n: sizes of n bits")
    print("\n".join(map_lines(ticks)))
