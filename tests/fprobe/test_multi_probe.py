"""Several native probes on one function: the trampolines for them do what the complete way does (FP-21, FP-29, FP-37)."""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from random import Random

import pytest
from isolation import isolated
from programs import nodes_lost

IR = """
; Two calls of the nested function at each level: n levels, the last one without.
define i64 @inner(i64 %x) noinline { %r = add i64 %x, 1  ret i64 %r }
define i64 @outer(i64 %n) noinline {
  %end = icmp eq i64 %n, 0
  br i1 %end, label %last, label %more
last:
  ret i64 1
more:
  %a = call i64 @inner(i64 %n)
  %n1 = sub i64 %n, 1
  %b = call i64 @outer(i64 %n1)
  %c = call i64 @inner(i64 %b)
  %r = add i64 %a, %c
  ret i64 %r
}
"""
WHENCE = """
declare ptr @llvm.returnaddress(i32)
define i64 @whence() noinline { %p = call ptr @llvm.returnaddress(i32 0)  %r = ptrtoint ptr %p to i64  ret i64 %r }
define i64 @call_whence() noinline "notrace" { %r = notail call i64 @whence()  ret i64 %r }
"""
DEPTH = 5
KINDS = ("entry", "exit", "both")
MIXES = 150


class Mix:
    """Some probes with what they are to do, chosen at random."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        self.count = random.randint(2, 6)
        self.probes = [
            {
                "kind": random.choice(KINDS),
                "data_size": random.choice((0, 0, 8, 8, 16)),
                "maxactive": random.choice((1, 3, 50, 50)),
                "disabled": random.random() < 0.1,
                "cancels": random.choice((0, 0, 1, 2, 3)),
                "nests": random.choice((0, 0, 0, 2, 7)),
                "changes": random.choice((0, 0, 0, 1, 4)),
                "victim": random.randrange(self.count),
                "stops": random.random() < 0.3,
            }
            for _ in range(self.count)
        ]


def attached(mix, module, log, notes, complete):
    """The probes of a mix, on both functions; with `complete` the first one asks for what only the complete way does."""
    import several_native as handlers

    import fprobe
    from ftrace.core.ops_flags import FTRACE_OPS_FL_RECURSION
    from ftrace.hit.records import DISABLED, STOPPED

    made = []
    for number, (chosen, note) in enumerate(zip(mix.probes, notes, strict=True)):
        probe = fprobe.fprobe(
            handlers.entry if chosen["kind"] != "exit" else None,
            handlers.leave if chosen["kind"] != "entry" else None,
            entry_data_size=chosen["data_size"],
            nr_maxactive=chosen["maxactive"],
        )
        note.log, note.number = ctypes.addressof(log), number
        note.cancels, note.nests, note.changes = chosen["cancels"], chosen["nests"], chosen["changes"]
        note.nested = module.symbol("inner").address
        note.flags = STOPPED if chosen["stops"] else DISABLED
        probe.action = ctypes.addressof(note)
        if complete and number == 0:
            probe.ops.flags |= FTRACE_OPS_FL_RECURSION
        fprobe.register_fprobe_ips(probe, list(module.sites))
        if chosen["disabled"]:
            fprobe.disable_fprobe(probe)
        made.append(probe)
    for chosen, note in zip(mix.probes, notes, strict=True):
        note.victim = made[chosen["victim"]].ops.probe.address
    return made


def outcome(mix, module, complete):
    """What the handlers saw, the results, the counts; and which entry trampoline the list had."""
    from several_native import LOG, Notes

    import fprobe
    from ftrace.core.tracer import tracer

    log = (ctypes.c_uint64 * (LOG + 1))()
    notes = [Notes.ctypes() for _ in range(mix.count)]
    probes = attached(mix, module, log, notes, complete)
    trampoline = ctypes.c_uint64.from_address(tracer().table.block_of(module).list_at(0).address).value
    with ExitStack() as stack:
        for probe in probes:
            stack.callback(fprobe.unregister_fprobe, probe)
        results = [module["outer"](DEPTH) for _ in range(3)] + [module["inner"](5)]
        counts = [probe.counts for probe in probes]
        assert [nodes_lost(probe) for probe in probes] == [0] * mix.count, mix.probes
    assert 0 < log[0] < LOG or all(count.hits == 0 for count in counts)
    return trampoline, (list(log[1 : log[0] + 1]), results, counts)


def compare(seeds):
    import sandbox
    from ftrace.core.runtime import runtime

    module = sandbox.load(IR, name="several", opt=2)
    names = {runtime().image.address(name): name for name in ("ftrace_entry_multi", "ftrace_entry_full")}
    quick = 0
    for seed in seeds:
        mix = Mix(seed)
        fast, seen = outcome(mix, module, complete=False)
        slow, expected = outcome(mix, module, complete=True)
        assert names[slow] == "ftrace_entry_full"
        assert seen == expected, f"seed {seed}: {mix.probes}"
        quick += names[fast] == "ftrace_entry_multi"
    assert quick > len(seeds) * 0.8


@isolated(timeout=60)
def test_fp21_fp29_fp37_mixes_of_probes_do_the_same_on_both_ways():
    compare(range(MIXES))


@pytest.mark.stress
@pytest.mark.timeout(600)
@isolated(timeout=500)
def test_mixes_of_probes_do_the_same_on_both_ways_at_length():
    compare(range(MIXES, 40 * MIXES))


@isolated
def test_fp29_fp34_a_return_that_no_probe_waits_for_is_not_hooked():
    """Neither with handlers at entry only, nor once all that have one at return have cancelled."""
    import several_native as handlers

    import fprobe
    import sandbox

    module = sandbox.load(WHENCE, name="whence")
    plain = module["call_whence"]()
    log = (ctypes.c_uint64 * (handlers.LOG + 1))()
    for leave, cancels, hooked in ((None, 0, False), (handlers.leave, 1, False), (handlers.leave, 0, True)):
        with ExitStack() as stack:
            for _ in range(2):
                note = handlers.Notes.ctypes(log=ctypes.addressof(log), cancels=cancels)
                probe = fprobe.attach("whence", entry=handlers.entry, exit=leave, nr_maxactive=5)
                probe.fp.action = ctypes.addressof(note)
                stack.enter_context(probe)
                stack.callback(id, note)
            assert [module["call_whence"]() != plain for _ in range(3)] == [hooked] * 3
