"""What failed first? The first few negative results, in order, of all threads together."""

from __future__ import annotations

import errno
import threading

import fprobe
import sandbox
import sandbox.demo
from sandbox.native import addressof, atomic_add, cast, i32, struct, u64

KEPT = 8


@struct
class Failure:
    ip: u64
    caller: u64
    result: i32


failures = fprobe.Array(Failure, KEPT, shared=True)
count = fprobe.Array(u64, 1, shared=True)


@fprobe.native
def returned(fp, ip, ret_ip, regs, data):
    result = cast(i32, regs.ax)
    if result >= 0 or result < -4095:
        return
    number = atomic_add(addressof(count[0]), 1, "relaxed")
    if number < KEPT:
        failures[number].ip = ip
        failures[number].caller = ret_ip
        failures[number].result = result


if __name__ == "__main__":
    module = sandbox.load(sandbox.demo.source(), name="demo")
    with fprobe.attach("vfs_*", exit=returned):
        threads = [threading.Thread(target=module["demo_main"], args=(20,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    describe = sandbox.symbol_table.describe
    print(f"{count[0]} failures, the first {KEPT}:")
    for failure in failures:
        print(f"  {describe(failure.ip)}: -{errno.errorcode[-failure.result]}, called from {describe(failure.caller)}")
