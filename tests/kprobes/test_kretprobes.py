"""Return probes: KP-74..86, on an ftrace location and at a breakpoint."""

# ruff: noqa: ARG005 (handlers take what handlers are given)

from __future__ import annotations

import ctypes
import errno
import struct
import threading

import pytest
from alarms import alarms
from isolation import TESTS, isolated, run_forked
from programs import BASIC, basic
from sampled import sampled

import fprobe
import kprobes
import sandbox
from kprobes import optimization
from sandbox.native import u64
from sandbox.process.cpus import set_num_possible_cpus

KINDS = {"ftrace": {}, "breakpoint": {"flavour": "none"}, "jump": {"flavour": "none"}}
counted = fprobe.Array(u64, 4, shared=True)


@kprobes.native
def count_entry(ri, regs):
    counted[0] += 1


@kprobes.native
def count_hit(p, regs):
    counted[3] += 1


@kprobes.native
def count_return(ri, regs):
    counted[1] += 1
    counted[2] += regs.ax


def load(kind):
    """The basic functions, with stubs at their entries or without."""
    optimization.set_kprobes_optimization(kind == "jump")
    return basic(**KINDS[kind])


def settled():
    kprobes.wait_for_kprobe_optimizer()


@isolated(shared=True)
@pytest.mark.parametrize("kind", KINDS)
def test_kp74_kp78_entry_return_data_and_cancel(kind):
    module = load(kind)
    seen = []

    def entry(ri, regs):
        struct.pack_into("q", ri.data, 0, regs.di)
        return regs.di == 6

    def handler(ri, regs):
        seen.append((*struct.unpack_from("q", ri.data), kprobes.regs_return_value(regs), ri.ret_addr == regs.ip))
        assert kprobes.get_kretprobe(ri) is probe.rp
        assert kprobes.get_kretprobe_retaddr(ri) == ri.ret_addr
        assert ri.task == threading.get_native_id()

    with kprobes.attach_return("leaf", handler, entry=entry, data_size=8) as probe:
        settled()
        assert module["twice"](5) == 7
        assert module["twice"](1) == 3
    assert seen == [(5, 6, True), (1, 2, True), (2, 3, True)]
    assert probe.nmissed == 0
    assert not probe.rp.errors.count, probe.rp.errors.first


@isolated
@pytest.mark.parametrize("kind", sampled(KINDS, 1))
def test_native_and_c_handlers_on_recursion_and_threads(kind):
    module = load(kind)
    rp = kprobes.kretprobe(symbol_name="factorial", handler=count_return, entry_handler=count_entry, maxactive=1000)
    kprobes.register_kretprobe(rp)
    settled()

    def work():
        for _ in range(200):
            assert module["factorial"](10) == 3628800

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = sum((3628800, 362880, 40320, 5040, 720, 120, 24, 6, 2, 1))
    assert (counted[0], counted[1], counted[2]) == (6000, 6000, 600 * total)
    assert (rp.nmissed, rp.kp.nmissed) == (0, 0)
    kprobes.unregister_kretprobe(rp)
    assert module["factorial"](10) == 3628800


@isolated(shared=True)
@pytest.mark.parametrize("kind", KINDS)
def test_kp76_kp81_kp83_no_free_instance(kind):
    """Counted exactly; the entry handler is not called either."""
    set_num_possible_cpus(1)
    module = load(kind)
    entries = []
    with kprobes.attach_return("factorial", entry=lambda ri, regs: entries.append(regs.di), maxactive=3) as probe:
        settled()
        assert module["factorial"](10) == 3628800
        assert entries == [10, 9, 8]
        assert (probe.nmissed, probe.rp.kp.nmissed) == (7, 0)
        module["factorial"](1)
        assert probe.nmissed == 7
    with kprobes.attach_return("factorial") as probe:
        assert probe.rp.maxactive == 10


@isolated(shared=True)
@pytest.mark.parametrize("kind", KINDS)
def test_kp79_kprobes_in_a_return_handler_are_missed(kind):
    module = load(kind)
    leaf = module["leaf"]
    seen = []

    def handler(ri, regs):
        seen.append((kprobes.kprobe_running(), leaf(1)))

    with kprobes.attach("leaf+5" if kind == "ftrace" else "leaf", pre=lambda p, regs: seen.append("never")) as inner:
        with kprobes.attach_return("other", handler):
            settled()
            assert module["other"](1) == 3
        assert inner.nmissed == 1
    assert seen == [(True, 2)]


@isolated(shared=True)
@pytest.mark.parametrize("kind", KINDS)
def test_kp80_kp84_disabled_or_unregistered_in_flight(kind):
    """A call that waits gets its handler if the probe was disabled meanwhile, and none if it was unregistered."""
    module = load(kind)
    seen = []
    rp = kprobes.kretprobe(symbol_name="apply", handler=lambda ri, regs: seen.append(regs.ax))
    kprobes.register_kretprobe(rp)
    settled()
    actions = [kprobes.disable_kretprobe, kprobes.enable_kretprobe, kprobes.unregister_kretprobe]
    callback = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(lambda x: actions.pop(0)(rp) or x)
    address = ctypes.cast(callback, ctypes.c_void_p).value
    assert module["apply"](address, 1) == 1
    assert seen == [1]
    assert module["apply"](address, 2) == 2  # it is disabled at entry
    assert seen == [1]
    assert module["apply"](address, 3) == 3
    assert seen == [1]
    assert not rp.registered
    assert not kprobes.kprobes_list()


@isolated(shared=True)
def test_kp82_several_on_one_frame():
    """Handlers in the reverse order of the entries; all but the oldest see the trampoline as their return address."""
    module = basic()
    order = []

    def handler(name):
        def returned(ri, regs):
            order.append((name, ri.ret_addr == regs.ip))

        return returned

    probes = [kprobes.kretprobe(symbol_name="leaf", handler=handler(name)) for name in "abc"]
    kprobes.register_kretprobes(probes)
    with fprobe.attach("leaf", exit=lambda *_: order.append(("f", True))):
        module["leaf"](1)
    assert order == [("a", False), ("b", False), ("c", False), ("f", True)]
    kprobes.unregister_kretprobes(probes)


@isolated(shared=True)
@pytest.mark.parametrize("kind", KINDS)
def test_a_handler_changes_what_the_function_returns(kind):
    module = load(kind)

    def handler(ri, regs):
        regs.ax = 1000

    with kprobes.attach_return("leaf", handler):
        settled()
        assert module["twice"](1) == 1000
        assert module["leaf"](1) == 1000
    assert module["twice"](1) == 3


@isolated
@pytest.mark.parametrize("kind", sampled(KINDS, 1))
def test_with_kprobes_on_the_same_entry_and_signals(kind):
    module = load(kind)
    rp = kprobes.kretprobe(symbol_name="factorial", handler=count_return, entry_handler=count_entry, maxactive=100)
    kprobes.register_kretprobe(rp)
    with kprobes.attach("factorial", pre=count_hit):
        settled()
        module["factorial"](10)  # what the first call prepares takes longer than the timer's interval
        before = counted[0]
        with alarms(0.005, lambda: module["factorial"](3)) as seen:
            for _ in range(1000):
                assert module["factorial"](10) == 3628800
    kprobes.unregister_kretprobe(rp)
    assert set(seen) <= {6}
    assert counted[0] == counted[1] == counted[3] >= before + 10000


@isolated(shared=True)
def test_kp75_the_checks_in_their_order():
    basic()

    def refused(**given):
        with pytest.raises(OSError) as caught:
            kprobes.register_kretprobe(kprobes.kretprobe(**given))
        return caught.value.errno

    assert refused() == errno.EINVAL
    assert refused(symbol_name="nobody") == errno.ENOENT
    assert refused(symbol_name="leaf", offset=5) == errno.EINVAL
    assert refused(symbol_name="leaf", data_size=4097) == errno.E2BIG
    assert refused(symbol_name="leaf", maxactive=1 << 30) == errno.ENOMEM
    rp = kprobes.kretprobe(symbol_name="leaf", data_size=4096)
    kprobes.register_kretprobe(rp)
    rp.kp.symbol_name = None
    with pytest.raises(OSError, match="already registered") as caught:
        kprobes.register_kretprobe(rp)
    assert caught.value.errno == errno.EINVAL
    kprobes.unregister_kretprobe(rp)


@isolated(shared=True)
def test_kp24_kp25_functions_whose_returns_cannot_be_hooked():
    text = BASIC + "\ndefine i64 @swapcontext(i64 %x) noinline { ret i64 %x }\n"
    text += "define i64 @forks(i64 %x) noinline returns_twice { ret i64 %x }\n"
    module = sandbox.load(text, name="switches")
    for name in ("swapcontext", "forks"):
        with pytest.raises(OSError, match=r"switches stacks|returns twice") as caught:
            kprobes.register_kretprobe(kprobes.kretprobe(symbol_name=name))
        assert caught.value.errno == errno.EINVAL
    assert kprobes.kprobe_add_ksym_blacklist(module.symbol("leaf").address) == module.symbol("leaf").size
    with pytest.raises(OSError, match="blacklist"):
        kprobes.register_kretprobe(kprobes.kretprobe(symbol_name="leaf"))


@isolated(shared=True)
def test_kp77_kp93_without_handlers():
    module = basic()
    rp = kprobes.kretprobe(symbol_name="leaf")
    kprobes.register_kretprobe(rp)
    assert module["twice"](1) == 3
    kprobes.unregister_kretprobe(rp)
    assert kprobes.kprobes_blacklist().splitlines()[0].startswith("0x0000")


@isolated(shared=True)
def test_kp84_kp86_never_registered():
    basic()
    rp = kprobes.kretprobe(symbol_name="leaf")
    kprobes.unregister_kretprobe(rp)
    for function in (kprobes.disable_kretprobe, kprobes.enable_kretprobe):
        with pytest.raises(OSError) as caught:
            function(rp)
        assert caught.value.errno == errno.EINVAL
    with pytest.raises(OSError):
        kprobes.register_kretprobes([rp], 0)


@isolated
@pytest.mark.parametrize("kind", sampled(KINDS, 1))
def test_longjmp_over_hooked_calls_gives_instances_back(kind):
    """RH-24 for instances: a call that never returns is found out by the next one."""
    optimization.set_kprobes_optimization(kind == "jump")
    text = """
declare i32 @_setjmp(ptr) returns_twice
declare void @longjmp(ptr, i32) noreturn
@buffer = global [64 x i64] zeroinitializer, align 16
define i64 @leaves(i64 %x) noinline { call void @longjmp(ptr @buffer, i32 1)  unreachable }
define i64 @around(i64 %x) noinline {
  %r = call i32 @_setjmp(ptr @buffer) returns_twice
  %first = icmp eq i32 %r, 0
  br i1 %first, label %go, label %done
go:
  %ignored = call i64 @leaves(i64 %x)
  br label %done
done:
  ret i64 %x
}
"""
    module = sandbox.load(text, name="jumps", **KINDS[kind])
    with kprobes.attach_return("leaves", maxactive=2) as probe:
        settled()
        for _ in range(100):
            assert module["around"](3) == 3
        assert probe.nmissed == 0


def test_kp85_a_return_that_nobody_hooked():
    """RH-18 at a return stub: said so, and the end."""
    source = """
import ctypes, sys
sys.path[:0] = [%r]
import kprobes
from kprobes import optimization
from programs import basic
optimization.set_kprobes_optimization(0)
module = basic(flavour="none")
rp = kprobes.kretprobe(symbol_name="leaf")
kprobes.register_kretprobe(rp)
module["leaf"](1)
stub = rp.kp.place.record.return_stub + 15
ctypes.CFUNCTYPE(None)(stub)()
"""
    done = run_forked(source % str(TESTS), 30)
    assert done.returncode < 0
    assert "Return address not found" in done.stderr


@isolated
def test_an_attachment_counts_calls_that_are_missed_at_their_entry_too():
    module = basic()
    calls = []

    def entry(ri, regs):
        calls.append(module["leaf"](1))

    with kprobes.attach_return("leaf", entry=entry, handler=lambda ri, regs: None) as probe:
        for _ in range(5):
            module["leaf"](1)
    assert len(calls) == 5
    assert (probe.hits, probe.nmissed) == (5, 5)
    assert (probe.rp.nmissed, probe.rp.kp.nmissed) == (0, 5)
