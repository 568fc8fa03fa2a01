"""Function probes for user space: callbacks at entry and exit of many functions at once, in running machine code.

    import fprobe, sandbox

    module = sandbox.load(ir_text, name="prog")

    def entry(fp, entry_ip, ret_ip, regs, entry_data):
        print(sandbox.symbol_table.describe(entry_ip), regs.di)

    with fprobe.attach("func*", entry=entry) as probe:
        module["main"](10)
    print(probe.counts)

The kernel's API is here too: `register_fprobe(fp, filter, notfilter)` and its relatives.
"""

from __future__ import annotations

from fprobe import neighbours

neighbours.check_before_import()

import ftrace  # noqa: E402, F401  # the check says what is found instead; programs may call its trace_printk from now on
from sandbox.lazy import exports  # noqa: E402  # after the check

__version__ = "0.1.0"

__all__, __getattr__, __dir__ = exports(__name__, __file__)
