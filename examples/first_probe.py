"""Which reads come back short? A handler at entry, one at return, and eight bytes that they share."""

import fprobe
import sandbox
import sandbox.demo

module = sandbox.load(sandbox.demo.source(), name="demo")


def entry(fp, entry_ip, ret_ip, regs, entry_data):
    entry_data[:8] = regs.dx.to_bytes(8, "little")  # the third argument: how much is wanted
    return 0  # anything else: no exit handler for this call


def leave(fp, entry_ip, ret_ip, regs, entry_data):
    wanted = int.from_bytes(entry_data[:8], "little")
    if regs.ax < wanted:
        print(f"{sandbox.symbol_table.locate(entry_ip).symbol}: wanted {wanted}, got {regs.ax}")


with fprobe.attach("vfs_re*", entry=entry, exit=leave, entry_data_size=8) as probe:
    module["demo_main"](5)
print(probe.counts)
