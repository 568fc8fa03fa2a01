"""Breakpoints on any instruction: kprobes, kretprobes, and their jump optimisation.

    import kprobes, sandbox

    module = sandbox.load(ir_text, name="prog")

    def pre(p, regs):
        print(hex(regs.ip), regs.di)

    with kprobes.attach("func+0x12", pre=pre):
        module["main"](10)

The kernel's API stands beside it: `register_kprobe(p)`, `register_kretprobe(rp)` and their relatives.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ftrace.registers import regs_return_value
    from kprobes.attachment import Attachment, ReturnAttachment, attach, attach_return
    from kprobes.blacklist import kprobe_add_ksym_blacklist
    from kprobes.busy import kprobe_busy_begin, kprobe_busy_end, kprobe_running, kprobes_abandoned
    from kprobes.jump.optimize import kprobes_optimization, set_kprobes_optimization, wait_for_kprobe_optimizer
    from kprobes.listing import kprobes_blacklist, kprobes_list, read_kprobes_enabled, write_kprobes_enabled
    from kprobes.native_decorator import native
    from kprobes.probe import (
        KPROBE_FLAG_DISABLED,
        KPROBE_FLAG_FTRACE,
        KPROBE_FLAG_GONE,
        KPROBE_FLAG_ON_FUNC_ENTRY,
        KPROBE_FLAG_OPTIMIZED,
        kprobe,
    )
    from kprobes.registration import (
        disable_kprobe,
        enable_kprobe,
        register_kprobe,
        register_kprobes,
        unregister_kprobe,
        unregister_kprobes,
    )
    from kprobes.returns import (
        disable_kretprobe,
        enable_kretprobe,
        get_kretprobe,
        get_kretprobe_retaddr,
        kretprobe,
        kretprobe_instance,
        register_kretprobe,
        register_kretprobes,
        unregister_kretprobe,
        unregister_kretprobes,
    )
    from kprobes.switch import kprobes_enabled, set_kprobes_enabled

_HOMES = {
    "ftrace.registers": ("regs_return_value",),
    "kprobes.attachment": ("Attachment", "ReturnAttachment", "attach", "attach_return"),
    "kprobes.blacklist": ("kprobe_add_ksym_blacklist",),
    "kprobes.busy": ("kprobe_busy_begin", "kprobe_busy_end", "kprobe_running", "kprobes_abandoned"),
    "kprobes.probe": (
        "KPROBE_FLAG_DISABLED",
        "KPROBE_FLAG_FTRACE",
        "KPROBE_FLAG_GONE",
        "KPROBE_FLAG_ON_FUNC_ENTRY",
        "KPROBE_FLAG_OPTIMIZED",
        "kprobe",
    ),
    "kprobes.registration": (
        "disable_kprobe",
        "enable_kprobe",
        "register_kprobe",
        "register_kprobes",
        "unregister_kprobe",
        "unregister_kprobes",
    ),
    "kprobes.returns": (
        "disable_kretprobe",
        "enable_kretprobe",
        "get_kretprobe",
        "get_kretprobe_retaddr",
        "kretprobe",
        "kretprobe_instance",
        "register_kretprobe",
        "register_kretprobes",
        "unregister_kretprobe",
        "unregister_kretprobes",
    ),
    "kprobes.listing": ("kprobes_blacklist", "kprobes_list", "read_kprobes_enabled", "write_kprobes_enabled"),
    "kprobes.native_decorator": ("native",),
    "kprobes.jump.optimize": ("kprobes_optimization", "set_kprobes_optimization", "wait_for_kprobe_optimizer"),
    "kprobes.switch": ("kprobes_enabled", "set_kprobes_enabled"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "KPROBE_FLAG_DISABLED",
    "KPROBE_FLAG_FTRACE",
    "KPROBE_FLAG_GONE",
    "KPROBE_FLAG_ON_FUNC_ENTRY",
    "KPROBE_FLAG_OPTIMIZED",
    "Attachment",
    "ReturnAttachment",
    "attach",
    "attach_return",
    "disable_kprobe",
    "disable_kretprobe",
    "enable_kprobe",
    "enable_kretprobe",
    "get_kretprobe",
    "get_kretprobe_retaddr",
    "kprobe",
    "kprobe_add_ksym_blacklist",
    "kprobe_busy_begin",
    "kprobe_busy_end",
    "kprobe_running",
    "kprobes_abandoned",
    "kprobes_blacklist",
    "kprobes_enabled",
    "kprobes_list",
    "kprobes_optimization",
    "kretprobe",
    "kretprobe_instance",
    "native",
    "read_kprobes_enabled",
    "register_kprobe",
    "register_kprobes",
    "register_kretprobe",
    "register_kretprobes",
    "regs_return_value",
    "set_kprobes_enabled",
    "set_kprobes_optimization",
    "unregister_kprobe",
    "unregister_kprobes",
    "unregister_kretprobe",
    "unregister_kretprobes",
    "wait_for_kprobe_optimizer",
    "write_kprobes_enabled",
]


def __getattr__(name: str) -> Any:
    """Names are imported at first use, so that `import kprobes` costs nothing."""
    if name not in _HOME:
        raise AttributeError(f"module 'kprobes' has no attribute {name!r}")
    found = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = found
    return found
