"""Function probes for user space: callbacks at entry and exit of many functions at once, in running machine code.

    import fprobe, sandbox

    module = sandbox.load(ir_text, name="prog")

    def entry(fp, entry_ip, ret_ip, regs, entry_data):
        print(sandbox.symbol_table.describe(entry_ip), regs.di)

    with fprobe.attach("func*", entry=entry) as probe:
        module["main"](10)
    print(probe.counts)

The kernel's API stands beside it: `register_fprobe(fp, filter, notfilter)` and its relatives.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fprobe.actions import Count, Record, Stat
    from fprobe.attachment import Attachment, attach
    from fprobe.native_decorator import native
    from fprobe.native_handler import native_mishaps
    from fprobe.registration import (
        FPROBE_FL_DISABLED,
        FPROBE_FL_KPROBE_SHARED,
        disable_fprobe,
        enable_fprobe,
        fprobe,
        fprobe_disabled,
        fprobe_is_registered,
        register_fprobe,
        register_fprobe_ips,
        register_fprobe_syms,
        unregister_fprobe,
    )
    from ftrace.floats import (
        float_argument,
        float_return_value,
        regs_get_xmm,
        regs_set_xmm,
        set_float_argument,
        set_float_return_value,
    )
    from ftrace.maps import Array, Hash, Histogram, per_task
    from ftrace.native_link import probe_read_faults
    from ftrace.registers import (
        instruction_pointer,
        instruction_pointer_set,
        kernel_stack_pointer,
        regs_get_kernel_argument,
        regs_get_kernel_stack_nth,
        regs_return_value,
        regs_set_return_value,
    )
    from ftrace.stacktrace import (
        is_rethook_trampoline,
        rethook_find_ret_addr,
        stack_trace,
        stack_trace_save,
        stack_trace_save_regs,
    )
    from ftrace.tracer import detach_all

_HOMES = {
    "fprobe.actions": ("Count", "Record", "Stat"),
    "fprobe.attachment": ("Attachment", "attach"),
    "fprobe.native_decorator": ("native",),
    "fprobe.native_handler": ("native_mishaps",),
    "fprobe.registration": (
        "FPROBE_FL_DISABLED",
        "FPROBE_FL_KPROBE_SHARED",
        "disable_fprobe",
        "enable_fprobe",
        "fprobe",
        "fprobe_disabled",
        "fprobe_is_registered",
        "register_fprobe",
        "register_fprobe_ips",
        "register_fprobe_syms",
        "unregister_fprobe",
    ),
    "ftrace.floats": (
        "float_argument",
        "float_return_value",
        "regs_get_xmm",
        "regs_set_xmm",
        "set_float_argument",
        "set_float_return_value",
    ),
    "ftrace.maps": ("Array", "Hash", "Histogram", "per_task"),
    "ftrace.native_link": ("probe_read_faults",),
    "ftrace.registers": (
        "instruction_pointer",
        "instruction_pointer_set",
        "kernel_stack_pointer",
        "regs_get_kernel_argument",
        "regs_get_kernel_stack_nth",
        "regs_return_value",
        "regs_set_return_value",
    ),
    "ftrace.stacktrace": (
        "is_rethook_trampoline",
        "rethook_find_ret_addr",
        "stack_trace",
        "stack_trace_save",
        "stack_trace_save_regs",
    ),
    "ftrace.tracer": ("detach_all",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "FPROBE_FL_DISABLED",
    "FPROBE_FL_KPROBE_SHARED",
    "Array",
    "Attachment",
    "Count",
    "Hash",
    "Histogram",
    "Record",
    "Stat",
    "attach",
    "detach_all",
    "disable_fprobe",
    "enable_fprobe",
    "float_argument",
    "float_return_value",
    "fprobe",
    "fprobe_disabled",
    "fprobe_is_registered",
    "instruction_pointer",
    "instruction_pointer_set",
    "is_rethook_trampoline",
    "kernel_stack_pointer",
    "native",
    "native_mishaps",
    "per_task",
    "probe_read_faults",
    "register_fprobe",
    "register_fprobe_ips",
    "register_fprobe_syms",
    "regs_get_kernel_argument",
    "regs_get_kernel_stack_nth",
    "regs_get_xmm",
    "regs_return_value",
    "regs_set_return_value",
    "regs_set_xmm",
    "rethook_find_ret_addr",
    "set_float_argument",
    "set_float_return_value",
    "stack_trace",
    "stack_trace_save",
    "stack_trace_save_regs",
    "unregister_fprobe",
]


def __getattr__(name: str) -> Any:
    """Names are imported at first use, so that `import fprobe` costs nothing."""
    if name not in _HOME:
        raise AttributeError(f"module 'fprobe' has no attribute {name!r}")
    found = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = found
    return found
