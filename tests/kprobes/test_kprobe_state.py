"""Several probes at one place, probes within probes, and what is kept of a hit (KP-1..4, KP-17, KP-40..54)."""

# ruff: noqa: ARG005 (handlers take what handlers are given)

from __future__ import annotations

import ctypes
import errno
import signal

import pytest
from control_block import control_block
from isolation import TESTS, isolated, run_forked
from programs import basic

import fprobe
import kprobes
from ftrace.core import ops as ftrace
from ftrace.core.ops import ftrace_ops
from ftrace.core.ops_flags import FTRACE_OPS_FL_IPMODIFY, FTRACE_OPS_FL_SAVE_REGS
from kprobes import checks, optimization
from kprobes.breakpoint.slots import PSEUDO_SYMBOL
from kprobes.hit.records import HIT_ACTIVE, HIT_SS, HIT_SSDONE, REENTER
from sandbox.symbols.table import symbol_table
from sandbox.threads import contexts
from sandbox.threads.contexts import current_context, preemptible


def task():
    return contexts.installed.task()


def stepped():
    optimization.set_kprobes_optimization(0)
    checks.preemptible = True
    return basic()


@isolated(shared=True)
def test_kp1_kp2_fields_and_flags():
    module = stepped()
    p = kprobes.kprobe(symbol_name="leaf", offset=5, flags=kprobes.KPROBE_FLAG_DISABLED | kprobes.KPROBE_FLAG_GONE)
    assert (p.addr, p.pre_handler, p.post_handler, p.fault_handler, p.nmissed, p.opcode, p.ainsn) == (
        None, None, None, None, 0, 0, b"",
    )  # fmt: skip
    kprobes.register_kprobe(p)
    assert p.flags == kprobes.KPROBE_FLAG_DISABLED  # KP-11
    assert (p.opcode, p.ainsn) == (0x48, bytes.fromhex("488d4701"))
    names = ("GONE", "DISABLED", "OPTIMIZED", "FTRACE", "ON_FUNC_ENTRY")
    assert [getattr(kprobes, f"KPROBE_FLAG_{name}") for name in names] == [1, 2, 4, 8, 16]
    kprobes.unregister_kprobe(p)
    assert module["twice"](5) == 7


@isolated(shared=True)
def test_kp3_kp4_the_status_of_a_hit():
    """KP-46: active in pre, done in post, nothing afterwards; not preemptible; NMI context at a breakpoint (FT-56)."""
    module = stepped()
    seen = []

    def look(p, regs, flags=0):
        seen.append((control_block(task()).status, kprobes.kprobe_running(), current_context(), preemptible()))

    with kprobes.attach("leaf+5", pre=look, post=look):
        module["leaf"](1)
    assert seen == [(HIT_ACTIVE, True, "nmi", False), (HIT_SSDONE, True, "nmi", False)]
    assert (control_block(task()).status, kprobes.kprobe_running(), current_context(), preemptible()) == (
        0,
        False,
        "normal",
        True,
    )
    seen.clear()
    with kprobes.attach("leaf", pre=look, post=look):
        module["leaf"](1)
    assert seen == [(HIT_ACTIVE, True, "normal", False), (HIT_SSDONE, True, "normal", False)]


@isolated(shared=True)
def test_kp17_kp47_newest_first_and_the_first_that_redirects_is_the_last():
    module = stepped()
    order = []

    def handler(name, result=0):
        def pre(p, regs):
            order.append(name)
            if result:
                regs.ip = p.addr + len(p.ainsn)
                regs.ax = 99
            return result

        return pre

    probes = [
        kprobes.kprobe(
            symbol_name="leaf",
            offset=5,
            pre_handler=handler(name),
            post_handler=lambda p, regs, flags: order.append("post"),
        )
        for name in "abc"
    ]
    kprobes.register_kprobes(probes)
    assert len({p.place for p in probes}) == 1
    assert module["leaf"](1) == 2
    assert order == ["c", "b", "a", "post", "post", "post"]
    order.clear()
    with kprobes.attach("leaf+5", pre=handler("d", 1)):
        assert module["leaf"](1) == 99
    assert order == ["d"]
    order.clear()
    kprobes.disable_kprobe(probes[1])
    assert module["leaf"](1) == 2
    assert order == ["c", "a", "post", "post"]  # KP-41
    kprobes.unregister_kprobes(probes)


@isolated(shared=True)
def test_kp26_kp94_the_slot():
    """The instruction and a breakpoint, within reach of the text; a symbol for the page."""
    stepped()
    with kprobes.attach("leaf+5") as probe:
        place = probe.p.place
        assert abs(place.record.slot - place.address) < 1 << 31
        assert ctypes.string_at(place.record.slot, 5) == probe.p.ainsn + b"\xcc"
        assert symbol_table.locate(place.record.slot).symbol.name == PSEUDO_SYMBOL
        slot = place.record.slot
    with kprobes.attach("leaf+5") as probe:
        assert probe.p.place.record.slot == slot


def test_kp40_a_breakpoint_that_is_nobodys_goes_to_the_handler_before_us():
    source = """
import signal, sandbox, kprobes
seen = []
import ctypes
libc = ctypes.CDLL(None)
HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)
keep = HANDLER(lambda number: seen.append(number))
libc.signal.argtypes, libc.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
libc.signal(signal.SIGTRAP, ctypes.cast(keep, ctypes.c_void_p))
text = 'module asm ".globl own"\\nmodule asm "own: int3"\\nmodule asm "mov $5, %eax"\\nmodule asm "ret"\\n'
text += 'module asm ".size own, .-own"\\ndefine i64 @leaf(i64 %x) noinline { %r = add i64 %x, 1  ret i64 %r }\\n'
module = sandbox.load(text, name="own")
with kprobes.attach("leaf+5"):
    result = ctypes.CFUNCTYPE(ctypes.c_int)(module.symbol("own").address)()
print(result, seen)
"""
    done = run_forked(source, 30)
    assert done.stdout == "5 [5]\n", done.stderr


@isolated(shared=True)
def test_kp42_busy():
    """Kprobes and shared fprobes that are hit meanwhile are missed; not nestable; clearing it in a handler does no harm."""
    module = stepped()
    hits = []
    with kprobes.attach("leaf+5", pre=lambda p, regs: hits.append(1)) as probe:
        with fprobe.attach("leaf", entry=lambda *_: hits.append(2), shared=True) as shared:
            kprobes.kprobe_busy_begin()
            assert kprobes.kprobe_running()
            assert module["twice"](1) == 3
            kprobes.kprobe_busy_begin()
            kprobes.kprobe_busy_end()
            assert not kprobes.kprobe_running()
            assert shared.counts.missed_busy == 2
        assert (hits, probe.nmissed) == ([], 2)
        kprobes.kprobe_busy_end()

    def clears(p, regs, flags=0):
        hits.append(3)
        kprobes.kprobe_busy_begin()
        kprobes.kprobe_busy_end()

    with kprobes.attach("leaf+5", pre=clears, post=clears):
        assert module["twice"](1) == 3
    assert hits == [3, 3, 3, 3]
    assert not kprobes.kprobe_running()


@isolated(shared=True)
def test_kp43_kp45_hits_within_hits_are_counted_for_every_child():
    module = stepped()
    leaf = module["leaf"]
    outer = []

    def calls(p, regs, flags=0):
        outer.append(leaf(10))

    other = kprobes.kprobe(symbol_name="leaf", offset=5, pre_handler=lambda p, regs: outer.append("never"))
    silent = kprobes.kprobe(symbol_name="leaf", offset=5, flags=kprobes.KPROBE_FLAG_DISABLED)
    kprobes.register_kprobes([other, silent])
    with kprobes.attach("other+5", pre=calls, post=calls) as probe:
        assert module["other"](1) == 3
        assert outer == [11, 11]
        assert (other.nmissed, silent.nmissed, probe.nmissed) == (2, 2, 0)
    kprobes.unregister_kprobes([other, silent])
    assert (HIT_SS, REENTER) == (2, 4)


def test_kp44_a_hit_while_a_missed_one_is_stepped_ends_the_process():
    source = """
import sandbox, kprobes, sys
sys.path[:0] = [TESTS]
from programs import basic
from kprobes import checks
from kprobes import optimization
from kprobes.hit.records import REENTER
from control_block import control_block
from sandbox.threads import contexts
optimization.set_kprobes_optimization(0)
checks.preemptible = True
module = basic()
def pre(p, regs):
    control_block(contexts.installed.task()).status = REENTER
    module["leaf"](1)
kprobes.attach("leaf+5").attach()
with kprobes.attach("other+5", pre=pre):
    module["other"](1)
"""
    done = run_forked(source.replace("TESTS", repr(str(TESTS))), 30)
    assert done.returncode in (-signal.SIGILL, 1)
    assert "Unrecoverable kprobe detected." in done.stderr


@isolated(shared=True)
def test_kp50_kp51_kp53_the_two_ops_of_ftrace_locations():
    """A post_handler needs ip to itself; one that comes later takes the place over to the other ops, and back."""
    from kprobes.fast import ftrace_site

    module = basic()
    taken = ftrace_ops(lambda *_: None, flags=FTRACE_OPS_FL_IPMODIFY | FTRACE_OPS_FL_SAVE_REGS)
    ftrace.ftrace_set_filter(taken, "leaf")
    ftrace.register_ftrace_function(taken)
    before = module["twice"](1)
    first = kprobes.kprobe(symbol_name="leaf", pre_handler=lambda p, regs: None)
    kprobes.register_kprobe(first)
    late = kprobes.kprobe(symbol_name="leaf", post_handler=lambda p, regs, flags: None)
    with pytest.raises(OSError) as caught:
        kprobes.register_kprobe(late)
    assert caught.value.errno == errno.EBUSY
    assert kprobes.kprobes_list().count("\n") == 1
    ftrace.unregister_ftrace_function(taken)
    late.addr = None
    kprobes.register_kprobe(late)
    assert (len(ftrace_site._plain.places), len(ftrace_site._ipmodify.places)) == (0, 1)
    with pytest.raises(OSError):
        ftrace.register_ftrace_function(taken)
    assert module["twice"](1) == before
    kprobes.unregister_kprobe(late)
    kprobes.unregister_kprobe(first)
    assert not ftrace_site._plain.ops.enabled
    assert not ftrace_site._ipmodify.ops.enabled


@isolated
def test_kp54_once_ftrace_is_dead():
    from ftrace.core.dyn_ftrace.bug import ftrace_kill

    module = basic()
    hits = []
    p = kprobes.kprobe(symbol_name="leaf", pre_handler=lambda p, regs: hits.append(1))
    kprobes.register_kprobe(p)
    module["leaf"](1)
    ftrace_kill()
    module["leaf"](1)
    assert hits == [1]
    kprobes.disable_kprobe(p)
    kprobes.unregister_kprobe(p)


@isolated(shared=True)
def test_kp56_enabling_while_all_are_off_takes_effect_later():
    """KP-59 too: what is registered while kprobes are off is armed when they are on."""
    module = stepped()
    hits = []
    p = kprobes.kprobe(symbol_name="leaf", offset=5, pre_handler=lambda p, regs: hits.append(1))
    kprobes.register_kprobe(p)
    kprobes.disable_kprobe(p)
    kprobes.kprobes_enabled(False)
    kprobes.enable_kprobe(p)
    assert not p.is_off
    module["leaf"](1)
    assert hits == []
    kprobes.kprobes_enabled(True)
    module["leaf"](1)
    assert hits == [1]
    kprobes.unregister_kprobe(p)


@isolated(shared=True)
def test_kp15_a_module_that_is_going():
    from sandbox.loading.module import ModuleState

    module = basic()
    address = module.symbol("leaf").address
    module.state = ModuleState.GOING
    with pytest.raises(OSError, match="being unloaded") as caught:
        kprobes.register_kprobe(kprobes.kprobe(addr=address))
    assert caught.value.errno == errno.ENOENT
    module.state = ModuleState.LIVE
    module.unload()
    with pytest.raises(OSError) as caught:
        kprobes.register_kprobe(kprobes.kprobe(addr=address))
    assert caught.value.errno == errno.ENOENT
