"""Breakpoints on any instruction: kprobes, kretprobes, and their jump optimisation.

    import kprobes, sandbox

    module = sandbox.load(ir_text, name="prog")

    def pre(p, regs):
        print(hex(regs.ip), regs.di)

    with kprobes.attach("func+0x12", pre=pre):
        module["main"](10)

The kernel's API is here too: `register_kprobe(p)`, `register_kretprobe(rp)` and their relatives.
"""

from __future__ import annotations

from sandbox.lazy import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    __file__,
    {
        "set_kprobes_enabled": ("kprobes.states", "kprobes_enabled(on)"),
        "read_kprobes_enabled": ("kprobes.events.debugfs", "kprobes_enabled()"),
        "write_kprobes_enabled": ("kprobes.events.debugfs", "kprobes_enabled(on)"),
    },
)
