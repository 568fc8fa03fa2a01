"""How long are the texts of which zlib computes checksums, and who asks? A handler for `fprobe run --native`."""

from __future__ import annotations

import fprobe
from sandbox.native import u64

callers = fprobe.Hash(u64, u64, size=256)
sizes = fprobe.Histogram()


@fprobe.native
def asked(fp, ip, ret_ip, regs, data):
    callers[ret_ip] += 1
    sizes.add(regs.dx)  # the third argument
