"""How deep handlers nest that call what they are probing: once more, in every context alike (FT-52..FT-54)."""

from __future__ import annotations

import ctypes

import pytest
from isolation import isolated

IR = "define i64 @plain(i64 %x) noinline { %r = add i64 %x, 1  ret i64 %r }"


def nesting(context, ends, complete, several=1):
    """For each of `several` probes, the entries, exits and misses of a call in a context.

    `complete`: by the slow path, because of a limit.

    They are those of the second call: the first has no credit for a return node, and so takes the slow path anyway.
    """
    import nesting_native as handlers

    import fprobe
    import sandbox
    from sandbox.threads import contexts

    module = sandbox.load(IR, name="nesting")
    target = module.symbol("plain").address
    notes = [handlers.Nesting.ctypes(target, 0, 0) for _ in range(several)]
    probes = [
        fprobe.fprobe(
            handlers.entry if "entry" in ends else handlers.entry_sp if "entry with sp" in ends else None,
            handlers.leave if "exit" in ends else None,
            nr_maxactive=100,
            max_hits=1 << 40 if complete else 0,
        )
        for _ in notes
    ]
    for probe, note in zip(probes, notes, strict=True):
        probe.action = ctypes.addressof(note)
        fprobe.register_fprobe_ips(probe, [target])
    counts = []
    for _ in range(2):
        if context == "normal":
            module["plain"](1)
        else:
            contexts.call_in(context, target, [1])
        counts.append([(note.entries, note.exits, probe.nmissed) for probe, note in zip(probes, notes, strict=True)])
    for probe in probes:
        fprobe.unregister_fprobe(probe)
    module.unload()
    return [tuple(now - then for then, now in zip(*pair, strict=True)) for pair in zip(*counts, strict=True)]


@pytest.mark.parametrize("ends", [("entry",), ("entry with sp",), ("exit",), ("entry", "exit")], ids="+".join)
@pytest.mark.parametrize("context", ["normal", "softirq", "irq"])
@isolated(shared=True)
def test_ft52_ft54_native_handlers_nest_once_in_every_context(context, ends):
    found = nesting(context, ends, complete=False)
    assert found == nesting(context, ends, complete=True)
    if "exit" not in ends:
        assert found == [(2, 0, 1)]


@pytest.mark.parametrize("ends", [("entry", "exit"), ("entry with sp", "exit")], ids="+".join)
@pytest.mark.parametrize("context", ["normal", "softirq", "irq"])
@isolated(shared=True)
def test_ft52_ft54_handlers_of_two_probes_nest_alike_on_both_ways(context, ends):
    assert nesting(context, ends, complete=False, several=2) == nesting(context, ends, complete=True, several=2)
