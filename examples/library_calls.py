"""Which functions of zlib take the time? Every one of them probed, at entry and at return."""

import ctypes
import zlib

import fprobe

ctypes.CDLL("libz.so.1")
text = b"to be, or not to be: that is the question. " * 10_000

with fprobe.attach("libz:*", action=fprobe.Stat()) as probe:
    zlib.decompress(zlib.compress(text))
    print(f"{len(probe.targets)} functions are probed")
    slowest = max(probe.action.functions().values(), key=lambda row: row.total_ns)

print(f"the slowest took {slowest.total_ns / slowest.hits:,.0f} ns a call")
assert probe.counts.missed == 0
