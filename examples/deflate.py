"""How much memory does zlib ask for? A kprobe at the entry of a library's function, with a handler in machine code."""

import zlib

import fprobe
import kprobes

sizes = fprobe.Histogram(32)


@kprobes.native
def pre(p, regs):
    sizes.add(regs.di)  # malloc's argument, in bytes


with kprobes.attach("libc:malloc", pre=pre) as probe:
    kprobes.wait_for_kprobe_optimizer()  # from here on it is a jump: some nanoseconds for each call
    zlib.compress(bytes(100_000))
for bucket in sizes:
    if bucket.count:
        print(f"{bucket.low:>8} bytes and more: {bucket.count}")
