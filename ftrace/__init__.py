"""Patching the sites at function entries while the code runs: ftrace_ops and its filters, direct calls, the ring buffer.

    from ftrace import ftrace_ops, ftrace_set_filter, register_ftrace_function

Names are imported at first use; `dir(ftrace)` lists them, and docs/ftrace.md shows how they go together.
"""

from __future__ import annotations

import sandbox  # noqa: F401  # before ctypes: it refuses sub-interpreters
from sandbox.compile.exports import exported
from sandbox.lazy import exports


def _address_of(symbol: str) -> int:
    from ftrace.tracing.output.trace_printk import address_of

    return address_of(symbol)


exported.update(
    dict.fromkeys(("trace_printk", "trace_puts", "__trace_bprintk", "__trace_bputs", "__trace_puts"), _address_of)
)
__all__, __getattr__, __dir__ = exports(__name__, __file__)
