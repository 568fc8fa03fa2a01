"""Probes that are alone on an ftrace location, and those that are not: the same events, whichever way a hit goes."""

# ruff: noqa: ARG005 (handlers take what handlers are given)

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import threading

import pytest
from isolation import isolated
from programs import basic, site_of
from sampled import in_stress, sampled

import fprobe
import kprobes
import sandbox
from ftrace.core.filters.lookup import enabled_functions
from ftrace.core.runtime import runtime
from ftrace.core.tracer import tracer
from ftrace.hit.records import KPROBE, ProbeList
from kprobes.fast import return_stubs, single
from sandbox.native import i32, u64
from sandbox.symbols.table import symbol_table

hits = fprobe.Array(u64, 8, shared=True)


@kprobes.native
def silent(p, regs):
    pass


@kprobes.native
def count_return(ri, regs):
    hits[0] += 1


@kprobes.native
def sum_returns(ri, regs):
    hits[0] += 1
    hits[1] += regs.ax


@kprobes.native
def note_argument(ri, regs):
    hits[2] += 1
    ri.data[0] = regs.di


@kprobes.native
def sum_products(ri, regs):
    hits[0] += 1
    hits[1] += regs.ax * ri.data[0]


@kprobes.native
def only_odd(ri, regs) -> i32:
    hits[2] += 1
    if regs.di & 1 == 0:
        return 1
    return 0


@kprobes.native
def sum_arguments(p, regs):
    hits[3] += 1
    hits[4] += regs.di


@kprobes.native
def in_the_instance(ri, regs):
    hits[5] = u64_of(ri.ret_addr == regs.ip)
    hits[6] = ri.task
    hits[7] = ri.frame - regs.sp + 8


@sandbox.native.native(inline=True)
def u64_of(value: sandbox.native.bool_) -> u64:
    return sandbox.native.cast(u64, value)


def is_single(module, name):
    """Whether the list of a function has the native half of a probe that is alone there, and nothing else."""
    location = tracer().table.named(name)
    record = location.block.list_at(location.position)
    first = ProbeList.ctypes.from_address(record.address)
    return first.count == 1 and bool(record.probes[0].native.kind & KPROBE)


def entry_trampoline(name):
    location = tracer().table.named(name)
    record = ProbeList.ctypes.from_address(location.block.list_at(location.position).address)
    return next(symbol.name for symbol in runtime().image.symbols if symbol.address == record.entry)


def kretprobe(name="leaf", **given):
    rp = kprobes.kretprobe(symbol_name=name, **given)
    kprobes.register_kretprobe(rp)
    return rp


def kprobe(name="leaf", **given):
    p = kprobes.kprobe(symbol_name=name, **given)
    kprobes.register_kprobe(p)
    return p


def counted():
    return [hits[index] for index in range(5)]


CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)


def while_called(module, action, argument=0):
    """Let apply(f, x) = f(x) call `action` in the middle; its result."""

    def called(value):
        action()
        return value + 1

    callback = CALLBACK(called)
    return module["apply"](ctypes.cast(callback, ctypes.c_void_p).value, argument)


@isolated
def test_which_probes_are_served_so():
    module = basic()
    rp = kretprobe(handler=sum_returns)
    assert is_single(module, "leaf")
    with kprobes.attach("leaf", pre=silent):
        assert not is_single(module, "leaf")
    assert is_single(module, "leaf")
    kprobes.disable_kretprobe(rp)
    assert not is_single(module, "leaf")
    kprobes.enable_kretprobe(rp)
    assert is_single(module, "leaf")
    kprobes.unregister_kretprobe(rp)
    refused = [
        {"handler": lambda ri, regs: None},
        {"handler": sum_returns, "entry_handler": lambda ri, regs: 0},
        {"handler": sum_returns, "data_size": 72},
    ]
    for given in refused:
        rp = kretprobe(**given)
        assert not is_single(module, "leaf")
        assert module["leaf"](1) == 2
        kprobes.unregister_kretprobe(rp)
    for given, served in (({"pre_handler": silent}, True), ({"pre_handler": lambda p, regs: 0}, False), ({}, False)):
        p = kprobe(**given)
        assert is_single(module, "leaf") == served
        kprobes.unregister_kprobe(p)
    assert single.SingleProbe.count == 0


@isolated
def test_a_handler_is_linked_once_for_each_role():
    basic()
    for _ in range(2):
        returns = kprobes.attach_return("twice", sum_returns, entry=only_odd)
        with kprobes.attach("leaf", pre=sum_arguments), returns:
            linked = {symbol.module for symbol in symbol_table if ":" in symbol.module}
        assert linked == {"entry_handler:only_odd", "handler:sum_returns", "pre_handler:sum_arguments"}


@isolated
def test_arguments_results_and_data():
    module = basic()
    for entry, handler, size in ((None, count_return, 0), (None, sum_returns, 0), (note_argument, sum_products, 8)):
        rp = kretprobe(entry_handler=entry, handler=handler, data_size=size)
        assert is_single(module, "leaf")
        assert module["twice"](5) == 7
        assert rp.nmissed == rp.kp.nmissed == 0
        kprobes.unregister_kretprobe(rp)
    assert counted() == [6, 6 + 7 + 6 * 5 + 7 * 6, 2, 0, 0]
    rp = kretprobe(entry_handler=only_odd, handler=sum_returns)
    assert module["twice"](5) == 7
    kprobes.unregister_kretprobe(rp)
    assert counted() == [7, 85 + 6, 4, 0, 0]
    p = kprobe(pre_handler=sum_arguments)
    assert is_single(module, "leaf")
    assert module["twice"](5) == 7
    kprobes.unregister_kprobe(p)
    assert counted() == [7, 91, 4, 2, 11]


@kprobes.native
def double_argument(p, regs):
    regs.di *= 2
    hits[3] = regs.ip - p.address


@kprobes.native
def double_and_say_so(p, regs) -> i32:
    regs.di *= 2
    hits[3] = regs.ip - p.address
    return 0


@isolated
@pytest.mark.parametrize("others", [0, 2])
def test_kp52_a_handler_that_cannot_redirect_is_given_the_arguments(others):
    module = basic()
    with contextlib.ExitStack() as stack:
        for _ in range(others):
            stack.enter_context(fprobe.attach("leaf", action=fprobe.Count()))
        for handler, trampoline in ((double_argument, "entry_only_args"), (double_and_say_so, "entry_regs")):
            p = kprobe(pre_handler=handler)
            expected = trampoline if not others else "entry_multi" if handler is double_argument else "entry_full"
            assert is_single(module, "leaf") == (not others) and entry_trampoline("leaf") == f"ftrace_{expected}"
            assert module["leaf"](21) == 43
            assert hits[3] == 1
            kprobes.unregister_kprobe(p)


@isolated
def test_kp52_ip_before_and_after():
    module = basic()
    target = module.symbol("other").address

    @kprobes.native
    def elsewhere(p, regs) -> i32:
        hits[3] = regs.ip - p.address
        regs.di = regs.di * 2
        regs.ip = target
        return 1

    @kprobes.native
    def in_vain(ri, regs) -> i32:
        hits[4] = regs.ip
        regs.ip = 1
        return 0

    p = kprobe(pre_handler=elsewhere)
    assert is_single(module, "leaf")
    assert module["twice"](5) == 26
    kprobes.unregister_kprobe(p)
    assert hits[3] == 1
    rp = kretprobe(entry_handler=in_vain, handler=sum_returns)
    assert is_single(module, "leaf")
    assert module["twice"](5) == 7
    assert hits[4] == rp.kp.addr + 1
    kprobes.unregister_kretprobe(rp)


@isolated
@pytest.mark.parametrize("others", ["none", "before", "behind"])
def test_kp82_the_instance_on_functions_with_other_probes(others):
    module = basic()
    seen = []
    fp = fprobe.fprobe(exit_handler=lambda *_: seen.append(True), entry_data_size=24)
    if others == "before":
        fprobe.register_fprobe(fp, "leaf")
    rp = kretprobe(handler=in_the_instance)
    if others == "behind":
        fprobe.register_fprobe(fp, "leaf")
    assert is_single(module, "leaf") == (others == "none")
    assert module["leaf"](5) == 6
    # The handlers run in the order of the probes, newest first: the fprobe has hooked the return already if it is newer.
    assert [hits[5], hits[6], hits[7]] == [int(others != "behind"), threading.get_native_id(), 0]
    kprobes.unregister_kretprobe(rp)
    if others != "none":
        fprobe.unregister_fprobe(fp)
        assert seen == [True]


@isolated
def test_kp43_kp79_kp83_what_is_missed_while_a_kprobe_runs():
    module = basic()
    rp = kretprobe(entry_handler=note_argument, handler=sum_returns, data_size=8, maxactive=1)
    p = kprobe("other", pre_handler=sum_arguments)
    assert is_single(module, "leaf")
    assert is_single(module, "other")
    kprobes.kprobe_busy_begin()
    module["leaf"](1)
    module["other"](1)
    kprobes.kprobe_busy_end()
    assert (rp.kp.nmissed, rp.nmissed, p.nmissed, counted()) == (1, 0, 1, [0, 0, 0, 0, 0])
    kprobes.unregister_kretprobe(rp)
    kprobes.unregister_kprobe(p)


@isolated
def test_kp81_shortage_also_over_both_ways():
    module = basic()
    rp = kretprobe("factorial", entry_handler=note_argument, handler=sum_returns, data_size=8, maxactive=3)
    assert module["factorial"](10) == 3628800
    assert (rp.nmissed, rp.kp.nmissed, hits[0], hits[2]) == (7, 0, 3, 3)
    kprobes.unregister_kretprobe(rp)
    rp = kretprobe("apply", handler=count_return, maxactive=2)
    extra = kprobes.kprobe(symbol_name="apply", pre_handler=silent)

    def third():
        assert is_single(module, "apply")
        while_called(module, lambda: None)

    def second():
        kprobes.unregister_kprobe(extra)
        while_called(module, third)

    def first():
        kprobes.register_kprobe(extra)
        assert not is_single(module, "apply")
        while_called(module, second)

    while_called(module, first)
    assert (rp.nmissed, hits[0]) == (2, 3 + 2)
    while_called(module, lambda: None)
    assert (rp.nmissed, hits[0]) == (2, 3 + 3)
    kprobes.unregister_kretprobe(rp)
    kprobes.unregister_kprobes([])
    assert single.SingleProbe.count == 0


@isolated
def test_kp84_unregistering_the_kprobe_of_a_kretprobe_unregisters_that():
    """What the call in flight refers to stays until it has returned, without its handler."""
    module = basic()
    rp = kretprobe("apply", handler=count_return)
    while_called(module, lambda: kprobes.unregister_kprobe(rp.kp))
    assert (hits[0], rp.registered) == (0, False)
    kprobes.unregister_kretprobe(kretprobe("leaf", handler=count_return))
    assert single.SingleProbe.count == 0


@isolated
def test_kp80_kp84_calls_in_flight():
    module = basic()
    rp = kretprobe("apply", handler=count_return)
    while_called(module, lambda: kprobes.disable_kretprobe(rp))
    assert hits[0] == 1
    kprobes.enable_kretprobe(rp)
    while_called(module, lambda: kprobes.unregister_kretprobe(rp))
    assert hits[0] == 1
    rp.kp.addr = None
    kprobes.register_kretprobe(rp)
    while_called(
        module, lambda: (kprobes.unregister_kretprobe(rp), fresh.append(kretprobe("apply", handler=count_return)))
    )
    assert hits[0] == 1
    while_called(module, lambda: None)
    assert hits[0] == 2
    kprobes.unregister_kretprobe(fresh[0])
    assert single.SingleProbe.count == 0


fresh = []


@isolated
def test_kp54_kp59_when_ftrace_is_dead_and_when_kprobes_are_off():
    module = basic()
    rp, p = kretprobe(handler=count_return), kprobe("other", pre_handler=sum_arguments)
    kprobes.set_kprobes_enabled(False)
    assert not is_single(module, "leaf")
    module["leaf"](1)
    kprobes.set_kprobes_enabled(True)
    assert is_single(module, "leaf")
    assert is_single(module, "other")
    assert "->kprobe_ftrace_handler+0x0/" in enabled_functions()
    module["leaf"](1)
    module["other"](1)
    tracer().kill()
    module["leaf"](1)
    module["other"](1)
    assert (hits[0], hits[3]) == (1, 1)
    kprobes.unregister_kretprobe(rp)
    kprobes.unregister_kprobe(p)


@isolated
def test_a_child_of_a_fork_has_what_its_thread_does_not_hold():
    module = basic()
    rp = kretprobe("apply", handler=count_return, maxactive=2)

    def fork():
        child = os.fork()
        if child == 0:
            while_called(module, lambda: while_called(module, lambda: None))
            os._exit(rp.nmissed)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1

    while_called(module, fork)
    assert (hits[0], rp.nmissed) == (1, 0)
    kprobes.unregister_kretprobe(rp)


# -- whichever way --------------------------------------------------------------------------------------------------

ENTRIES = (None, note_argument, only_odd)
HANDLERS = (None, count_return, sum_returns)


class Story:
    """A random sequence of events on three functions, and what was counted after each."""

    def __init__(self, seed):
        self.module = basic()
        self.random = random.Random(seed)
        self.rps, self.ps, self.log = [], [], []
        self.fp = fprobe.fprobe(lambda *_: self.module["leaf"](1) and 0)

    def name(self):
        return self.random.choice(["leaf", "factorial", "twice"])

    def add_return(self):
        name, entry, handler = self.name(), self.random.choice(ENTRIES), self.random.choice(HANDLERS)
        data, active = self.random.choice([8, 64]), self.random.choice([1, 2, 5, 40])
        self.rps.append(
            kretprobe(self.scoped(name), entry_handler=entry, handler=handler, data_size=data, maxactive=active)
        )

    def scoped(self, name):
        return f"{self.module.name}:{name}"

    def add_probe(self):
        self.ps.append(kprobe(self.scoped(self.name()), pre_handler=self.random.choice([silent, sum_arguments])))

    def drop(self):
        if self.rps and self.random.random() < 0.6:
            kprobes.unregister_kretprobe(self.rps.pop(self.random.randrange(len(self.rps))))
        elif self.ps:
            kprobes.unregister_kprobe(self.ps.pop(self.random.randrange(len(self.ps))))

    def toggle(self):
        if self.rps:
            rp = self.random.choice(self.rps)
            (kprobes.enable_kretprobe if rp.kp.flags & 2 else kprobes.disable_kretprobe)(rp)

    def recurse(self):
        """A handler that calls another probed function, from now on or no more."""
        if self.fp.registered:
            fprobe.unregister_fprobe(self.fp)
        else:
            fprobe.register_fprobe_ips(self.fp, [site_of(self.module, "factorial")])

    def busy(self):
        kprobes.kprobe_busy_begin()
        self.call()
        kprobes.kprobe_busy_end()

    def call(self):
        count = self.random.randrange(1, 12)
        self.log.append((self.module["factorial"](count), self.module["twice"](count)))

    def nested(self):
        """Events in the middle of a call."""
        while_called(self.module, lambda: (self.step(), self.call()))

    def step(self):
        kinds = [
            self.add_return,
            self.add_probe,
            self.drop,
            self.toggle,
            self.recurse,
            self.busy,
            self.call,
            self.nested,
        ]
        kind = self.random.choices(kinds, [4, 2, 3, 2, 1, 2, 6, 2])[0]
        kind()
        missed = [(rp.nmissed, rp.kp.nmissed) for rp in self.rps] + [p.nmissed for p in self.ps]
        self.log.append((kind.__name__, *counted(), *missed))

    def tell(self, steps):
        before = counted()
        for _ in range(steps):
            self.step()
        for rp in self.rps:
            kprobes.unregister_kretprobe(rp)
        for p in self.ps:
            kprobes.unregister_kprobe(p)
        if self.fp.registered:
            fprobe.unregister_fprobe(self.fp)
        assert all(now >= then for now, then in zip(counted(), before, strict=True))
        return self.log


def relative(log, before):
    """The log of a story that began with these counts."""
    return [(kind, *(a - b for a, b in zip(rest[:5], before, strict=True)), *rest[5:]) if isinstance(kind, str) else (kind, *rest)
            for kind, *rest in log]  # fmt: skip


@isolated(timeout=60)
@pytest.mark.parametrize("seed", sampled(range(3), 1))
def test_the_same_either_way(seed):
    for number in range(seed * 100, seed * 100 + 4):
        logs = []
        for single.MOST in (1024, 0):
            before = counted()
            logs.append(relative(Story(number).tell(60), before))
        assert logs[0] == logs[1]
    assert single.SingleProbe.count == 0


@isolated(timeout=60)
@pytest.mark.parametrize("times", [30, pytest.param(100, marks=pytest.mark.stress)])
@pytest.mark.parametrize("kind", ["stub", in_stress("jump")])
def test_going_to_and_fro_under_two_threads(kind, times):
    """Every call is seen by the kretprobe, on the fast way, on the other, and while they change."""
    module = basic(flavour="fentry" if kind == "stub" else "none")
    rp = kretprobe(handler=count_return, maxactive=100)
    ended = threading.Event()
    calls = [0, 0]

    def is_fast():
        kprobes.wait_for_kprobe_optimizer()
        return (
            is_single(module, "leaf") if kind == "stub" else any(stub.on for stub in return_stubs._fast_stubs.values())
        )

    def work(index):
        while not ended.is_set():
            assert module["loop"](1000) == 1000
            calls[index] += 1000

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    ways = []
    for _ in range(times):
        with kprobes.attach("leaf", pre=silent):
            ways.append(is_fast())
        ways.append(is_fast())
    ended.set()
    for thread in threads:
        thread.join()
    assert ways == [False, True] * times
    assert rp.nmissed == rp.kp.nmissed == 0
    assert hits[0] == sum(calls) > 0, (hits[0], calls)
    kprobes.unregister_kretprobe(rp)
    assert single.SingleProbe.count == 0
