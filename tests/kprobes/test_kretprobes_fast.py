"""Return probes with plain native handlers on a jump: the fast way, and back from it whenever that is not enough."""

from __future__ import annotations

import ctypes
import threading

import pytest
from alarms import alarms
from isolation import isolated
from programs import basic

import fprobe
import kprobes
from kprobes.fast import return_stubs
from kprobes.fast.single import FastReturn
from sandbox.native import i32, u64

counted = fprobe.Array(u64, 4, shared=True)


@kprobes.native
def entered(ri, regs):
    counted[0] += 1


@kprobes.native
def returned(ri, regs):
    counted[1] += 1
    counted[2] += ri.data[0]


@kprobes.native
def every_other(ri, regs) -> i32:
    counted[0] += 1
    ri.data[0] = 1
    return 1 if counted[0] & 1 == 0 else 0


def is_fast(rp):
    return any(stub.on for stub in return_stubs._fast_stubs.values()) and isinstance(rp.kp.fast, FastReturn)


def fresh(**given):
    module = basic(flavour="none")
    rp = kprobes.kretprobe(symbol_name="factorial", entry_handler=entered, handler=returned, **given)
    kprobes.register_kretprobe(rp)
    kprobes.wait_for_kprobe_optimizer()
    return module, rp


@isolated
def test_recursion_threads_and_signals():
    module, rp = fresh(maxactive=500)
    assert is_fast(rp)

    def work():
        for _ in range(3000):
            assert module["factorial"](10) == 3628800

    with alarms(0.002, lambda: module["factorial"](5)) as arrived:
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        work()
        for thread in threads:
            thread.join()
    assert set(arrived) <= {120}
    assert counted[0] == counted[1] == 90000 + 5 * len(arrived)
    assert (rp.nmissed, rp.kp.nmissed) == (0, 0)
    kprobes.unregister_kretprobe(rp)
    assert module["factorial"](10) == 3628800
    assert counted[0] == 90000 + 5 * len(arrived)


@isolated
def test_kp81_the_number_of_instances_is_exact_on_both_ways():
    """KP-83: three of ten calls have an instance, whichever way the calls come in."""
    module, rp = fresh(maxactive=3)
    for fast in (True, False, True):
        before = rp.nmissed
        other = kprobes.attach("factorial", pre=None)
        if not fast:
            other.attach()
            kprobes.wait_for_kprobe_optimizer()
        assert is_fast(rp) == fast
        module["factorial"](10)
        assert rp.nmissed - before == 7
        other.detach()
        kprobes.wait_for_kprobe_optimizer()
    assert counted[0] == counted[1] == 9
    kprobes.unregister_kretprobe(rp)
    assert rp.nmissed == 21


@isolated
def test_kp78_data_and_cancelling():
    module = basic(flavour="none")
    rp = kprobes.kretprobe(symbol_name="leaf", entry_handler=every_other, handler=returned, data_size=16)
    kprobes.register_kretprobe(rp)
    kprobes.wait_for_kprobe_optimizer()
    assert is_fast(rp)
    for number in range(100):
        assert module["leaf"](number) == number + 1
    assert (counted[0], counted[1], counted[2]) == (100, 50, 50)
    assert rp.nmissed == 0
    kprobes.unregister_kretprobe(rp)


@isolated
def test_kp80_kp84_in_flight():
    """Disabled meanwhile: the handler comes; unregistered meanwhile: it does not."""
    module = basic(flavour="none")
    rp = kprobes.kretprobe(symbol_name="apply", entry_handler=entered, handler=returned)
    kprobes.register_kretprobe(rp)
    kprobes.wait_for_kprobe_optimizer()
    assert is_fast(rp)
    actions = [kprobes.disable_kretprobe, kprobes.enable_kretprobe, kprobes.unregister_kretprobe]
    callback = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(lambda x: actions.pop(0)(rp) or x)
    address = ctypes.cast(callback, ctypes.c_void_p).value
    counts = []
    for number in (1, 2, 3):
        assert module["apply"](address, number) == number
        kprobes.wait_for_kprobe_optimizer()
        counts.append((counted[0], counted[1]))
    assert counts == [(1, 1), (1, 1), (2, 1)]


@isolated
def test_kp79_kprobes_in_its_context_are_missed():
    module, rp = fresh()
    with kprobes.attach("leaf", pre=lambda *_: module["factorial"](4) and 0):
        assert module["leaf"](1) == 2
    assert (counted[0], rp.kp.nmissed) == (0, 4)
    kprobes.unregister_kretprobe(rp)


@pytest.mark.stress
@isolated
def test_it_comes_and_goes_while_threads_call():
    module = basic(flavour="none")
    stop = threading.Event()
    wrong = []

    def work():
        while not stop.is_set():
            if module["factorial"](6) != 720:
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(40):
        rp = kprobes.kretprobe(symbol_name="factorial", entry_handler=entered, handler=returned, maxactive=100)
        kprobes.register_kretprobe(rp)
        kprobes.wait_for_kprobe_optimizer()
        assert module["factorial"](3) == 6
        kprobes.unregister_kretprobe(rp)
        seen = counted[0]
        module["factorial"](3)
        assert counted[0] == seen
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
