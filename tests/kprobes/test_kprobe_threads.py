"""Kprobes and fprobes that several threads register at once, and handlers that do."""

# ruff: noqa: ARG005 (handlers take what handlers are given)

from __future__ import annotations

import shutil
import threading
import time

import pytest
from isolation import isolated
from programs import basic
from sampled import in_stress

import fprobe
import kprobes


@isolated(shared=True)
def test_a_batch_that_has_text_open_goes_on_to_an_ftrace_location_while_an_fprobe_is_registered():
    """ftrace's lock before that of the text."""
    from kprobes.breakpoint.patching import patching

    module = basic()
    half_way, begun = threading.Event(), threading.Event()
    probes = [kprobes.kprobe(symbol_name="leaf", offset=offset, pre_handler=lambda p, regs: 0) for offset in (5, 0)]

    def batch():
        with patching():
            kprobes.register_kprobe(probes[0])
            half_way.set()
            begun.wait(30)
            time.sleep(0.1)  # the other thread has got as far as it can
            kprobes.register_kprobe(probes[1])

    thread = threading.Thread(target=batch)
    thread.start()
    assert half_way.wait(30)
    begun.set()
    with fprobe.attach("other") as probe:
        assert module["other"](1) == 3
    thread.join()
    assert probe.hits == 1
    kprobes.unregister_kprobes(probes)
    assert module["leaf"](1) == 2


@pytest.mark.parametrize("offset", [0, 5])
@isolated(shared=True)
def test_kp57_a_handler_registers_a_probe_while_another_thread_waits_for_it(offset):
    """No lock is held while handlers are waited for."""
    module = basic()
    inside, leaving, seen = threading.Event(), threading.Event(), []
    inner = kprobes.kprobe(symbol_name="other", pre_handler=lambda p, regs: seen.append("inner"))

    def handler(p, regs):
        inside.set()
        leaving.wait(30)
        time.sleep(0.1)  # the other thread is waiting
        kprobes.register_kprobe(inner)
        seen.append("outer")

    outer = [kprobes.kprobe(symbol_name="leaf", offset=offset, pre_handler=handler) for _ in range(2)]
    kprobes.register_kprobe(outer[0])
    thread = threading.Thread(target=module["leaf"], args=(1,))
    thread.start()
    assert inside.wait(30)
    leaving.set()
    kprobes.unregister_kprobe(outer[0])
    assert seen == ["outer"]
    thread.join()
    assert module["other"](1) == 3 and seen == ["outer", "inner"]
    kprobes.unregister_kprobe(inner)


@isolated(shared=True)
def test_kp57_a_batch_on_ftrace_locations_waits_once():
    """However many probes leave, the handlers that may run are waited for at its end."""
    from ftrace.core.runtime import runtime

    basic()
    waits = []
    quiesce = runtime().quiesce
    probes = [kprobes.kprobe(symbol_name=name, pre_handler=lambda p, regs: 0) for name in ("leaf", "other", "twice")]
    kprobes.register_kprobes(probes)
    runtime().quiesce = lambda *lists: waits.append(1) or quiesce(*lists)
    kprobes.unregister_kprobes(probes)
    assert len(waits) <= 2


LEAVES = r"""
#include <pthread.h>
#include <setjmp.h>
static __thread jmp_buf back;
__attribute__((noipa)) void jumps(long x) { if (x) longjmp(back, 1); }
static void *leave(void *x) { if (!setjmp(back)) jumps(1); return 0; }
void a_thread(void) { pthread_t t; pthread_create(&t, 0, leave, 0); pthread_join(t, 0); }
void here(void) { leave(0); }
"""


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
@pytest.mark.parametrize("ends", ["thread", in_stress("process")])
@isolated
def test_kp84_what_a_call_has_taken_that_never_returns_is_given_back(ends):
    """RH-24: when its thread ends, and in a child that does not have the thread: there by one that was never probed."""
    import os

    from programs import load_c

    module = load_c(LEAVES)

    @kprobes.native
    def noted(ri, regs):
        pass

    rp = kprobes.kretprobe(symbol_name="jumps", entry_handler=noted, handler=noted, maxactive=2)
    kprobes.register_kretprobe(rp)
    second = kprobes.kprobe(symbol_name="jumps", pre_handler=lambda p, regs: 0)
    kprobes.register_kprobe(second)  # its instances come from a pool, and calls go the general way
    if ends == "thread":
        for _ in range(5):
            module["a_thread"]()
        assert (rp.nmissed, rp.kp.nmissed) == (0, 0)
    else:
        module["here"]()
        statuses = []

        def fork():
            child = os.fork()
            if child == 0:
                module["here"]()
                os._exit(rp.nmissed)
            statuses.append(os.waitpid(child, 0)[1])

        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()
        assert statuses == [0]
    kprobes.unregister_kprobe(second)
    kprobes.unregister_kretprobe(rp)


WAITS = r"""
#include <time.h>
#include <stdatomic.h>
static atomic_int inside, go_on;
__attribute__((noipa)) long calls(long wait) {
    struct timespec t = { 0, 100000 };
    if (wait) for (inside = 1; !go_on; ) nanosleep(&t, 0);
    return wait + 1;
}
__attribute__((noipa, patchable_function_entry(0))) long bare(long wait) { return calls(wait) - 1; }
void until_inside(void) { while (!inside); }
void leave(void) { go_on = 1; }
"""


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
@pytest.mark.parametrize("name", ["calls", "bare"])
@pytest.mark.parametrize("with_kprobe", [in_stress(False), True])
@isolated(shared=True)
def test_kp81_instances_of_threads_that_a_child_does_not_have_are_free(name, with_kprobe):
    import os

    from programs import load_c

    module = load_c(WAITS)
    rp = kprobes.kretprobe(symbol_name=name, handler=lambda ri, regs: 0, maxactive=1)
    kprobes.register_kretprobe(rp)
    if with_kprobe:
        kprobes.attach(name, pre=lambda p, regs: 0).attach()
    thread = threading.Thread(target=module[name], args=(1,))
    thread.start()
    module["until_inside"]()
    child = os.fork()
    if child == 0:
        results = [module[name](0) for _ in range(3)]
        os._exit(rp.nmissed if len(set(results)) == 1 else 99)
    assert os.waitpid(child, 0)[1] == 0
    module[name](0)
    assert rp.nmissed == 1
    module["leave"]()
    thread.join()


@pytest.mark.parametrize("at", ["entry", "return"])
@isolated(shared=True)
def test_kp81_instances_that_the_forking_thread_is_using_are_not_free_in_the_child(at):
    import os

    module = basic()
    children, codes = [], []

    def fork(ri, regs):
        if not children:
            children.append(os.fork())
            codes.append(module["leaf"](1))
        return 0

    rp = kprobes.kretprobe(symbol_name="leaf", maxactive=1)
    rp.entry_handler, rp.handler = (fork, None) if at == "entry" else (None, fork)
    kprobes.register_kretprobe(rp)
    result = module["leaf"](1)
    good = (result, codes, rp.nmissed + rp.kp.nmissed, module["leaf"](1), rp.nmissed + rp.kp.nmissed) == (
        2,
        [2],
        1,
        2,
        1,
    )
    if children == [0]:
        os._exit(0 if good else 1)
    assert good and os.waitpid(children[0], 0)[1] == 0
    kprobes.unregister_kretprobe(rp)


@isolated(shared=True)
def test_a_function_is_called_for_the_first_time_while_a_handler_is_linked():
    """Both want the text and the fault guard; who registers has the text already."""
    from ftrace.core.runtime import runtime
    from kprobes.breakpoint.patching import patching

    module = basic()
    probe = kprobes.kprobe(symbol_name="leaf", offset=5, pre_handler=lambda p, regs: 0)
    caller = threading.Thread(target=lambda: module["other"](1))
    with patching():
        kprobes.register_kprobe(probe)
        caller.start()
        time.sleep(0.3)
        runtime().faults.cover("linked", [(1, 2)])
    caller.join(30)
    assert not caller.is_alive()
    kprobes.unregister_kprobe(probe)
