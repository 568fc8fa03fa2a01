"""How deep handlers nest that call what they are probing: once more, in every context alike (FT-52..FT-54)."""

from __future__ import annotations

import ctypes

import pytest
from isolation import isolated

IR = "define i64 @plain(i64 %x) noinline { %r = add i64 %x, 1  ret i64 %r }"


def nesting(context, ends, complete):
    """Counts of entries, exits and misses of a call in a context. `complete`: by the slow path, because of a limit.

    They are those of the second call: the first has no credit for a return node, and so takes the slow path anyway.
    """
    import nesting_native as handlers

    import fprobe
    import sandbox
    from sandbox.threads import contexts

    module = sandbox.load(IR, name="nesting")
    target = module.symbol("plain").address
    note = handlers.Nesting.ctypes(target, 0, 0)
    probe = fprobe.fprobe(
        handlers.entry if "entry" in ends else handlers.entry_sp if "entry with sp" in ends else None,
        handlers.leave if "exit" in ends else None,
        nr_maxactive=100,
        max_hits=1 << 40 if complete else 0,
    )
    probe.action = ctypes.addressof(note)
    fprobe.register_fprobe_ips(probe, [target])
    counts = []
    for _ in range(2):
        if context == "normal":
            module["plain"](1)
        else:
            contexts.call_in(context, target, [1])
        counts.append((note.entries, note.exits, probe.nmissed))
    fprobe.unregister_fprobe(probe)
    module.unload()
    return tuple(after - before for before, after in zip(*counts, strict=True))


@pytest.mark.parametrize("ends", [("entry",), ("entry with sp",), ("exit",), ("entry", "exit")], ids="+".join)
@pytest.mark.parametrize("context", ["normal", "softirq", "irq"])
@isolated
def test_ft52_ft54_native_handlers_nest_once_in_every_context(context, ends):
    found = nesting(context, ends, complete=False)
    assert found == nesting(context, ends, complete=True)
    if "exit" not in ends:
        assert found == (2, 0, 1)
