"""HAZARDS 5: replacing and freeing. Freed memory is overwritten in these processes, so that its use shows."""

# ruff: noqa: ARG005, B023, I001  (the signature of a handler is given; handlers are called within the loop)

from __future__ import annotations

import pytest
from sampled import in_stress
from isolation import isolated
from programs import assert_untouched, basic, text_of


@isolated(shared=True)
def test_unregister_from_inside_a_handler_does_not_wait_for_itself():
    import fprobe

    module = basic()
    for name in ("entry", "exit"):
        seen = []
        probe = fprobe.attach("leaf", **{name: lambda *hit: seen.append(1) or probe.detach()})
        probe.attach()
        assert module["loop"](10) == 10
        assert seen == [1] and not probe.fp.registered and probe.fp.errors.first is None
    assert_untouched()


@pytest.mark.parametrize("where", [in_stress("entry"), "exit"])
@pytest.mark.parametrize("position", [0, 1, 2])
@isolated(shared=True)
def test_unregister_from_inside_a_handler_the_list_being_walked_stays(where, position):
    """The list that this very hit walks is not freed under it, with or without a node that pins it."""
    import gc

    import fprobe

    module = basic()
    for both in (False, True):
        order, probes = [], []
        for label in range(3):

            def handler(fp, ip, ret, regs, data, label=label):
                order.append(label)
                if label == position:
                    for probe in list(probes):
                        probe.detach()
                    gc.collect()
                    for _ in range(50):  # whoever frees too early gives the memory to these
                        fprobe.attach("other", entry=lambda *hit: 0).attach().detach()

            handlers = {where: handler}
            if both:
                handlers = {
                    "entry": handlers.get("entry", lambda *hit: 0),
                    "exit": handlers.get("exit", lambda *hit: None),
                }
            probes.append(fprobe.attach("leaf", **handlers).attach())
        assert module["twice"](1) == 3
        expected = [2, 1, 0] if where == "entry" else [0, 1, 2]
        assert order[: expected.index(position) + 1] == expected[: expected.index(position) + 1]
        assert all(probe.fp.errors.first is None for probe in probes)
    assert_untouched()


@isolated(shared=True)
def test_unregister_from_inside_a_handler_and_register_again():
    import fprobe

    module = basic()
    seen = []

    def entry(fp, ip, ret, regs, data):
        seen.append(1)
        probe.detach()
        probe.attach()

    probe = fprobe.attach("leaf", entry=entry, exit=lambda *hit: None)
    with probe:
        for _ in range(50):
            assert module["loop"](3) == 3
    assert len(seen) == 150 and probe.fp.errors.first is None
    assert_untouched()


@isolated(shared=True)
def test_waiting_two_threads_unregister_the_same_probe_from_its_handler():
    """A probe that is to fire once takes itself off; two threads may be in its handler at once."""
    import threading

    import fprobe

    module = basic()
    for _ in range(20):
        together = threading.Barrier(2, timeout=30)

        def entry(*hit, together=together):
            together.wait()
            probe.detach()

        probe = fprobe.attach("leaf", entry=entry).attach()
        threads = [threading.Thread(target=module["leaf"], args=(1,), daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive(), "deadlock"
        errors = probe.fp.errors.first
        assert errors is None or isinstance(errors, OSError), errors
        assert not probe.fp.registered
    assert_untouched()


@isolated(shared=True)
def test_waiting_a_handler_unregisters_what_another_thread_is_unregistering():
    import threading
    import time

    import fprobe

    module = basic()
    entered, go_on = threading.Event(), threading.Event()

    def entry(*hit):
        entered.set()
        go_on.wait(30)
        time.sleep(0.05)  # the other thread is waiting for us by now
        probe.detach()

    probe = fprobe.attach("leaf", entry=entry).attach()
    calling = threading.Thread(target=module["leaf"], args=(1,), daemon=True)
    calling.start()
    assert entered.wait(30)
    leaving = threading.Thread(target=probe.detach, daemon=True)
    leaving.start()
    go_on.set()
    for thread in (calling, leaving):
        thread.join(30)
        assert not thread.is_alive(), "deadlock"
    assert_untouched()


@pytest.mark.parametrize("action", ["disable", "enable", "counts", "functions", "register another"])
@isolated(shared=True)
def test_waiting_a_handler_uses_the_api_while_it_is_waited_for(action):
    """FP-41: disabling waits for nothing; nor does reading."""
    import threading
    import time

    import fprobe

    module = basic()
    entered, go_on, done = threading.Event(), threading.Event(), []
    other = fprobe.attach("other", entry=lambda *hit: 0)

    def entry(*hit):
        entered.set()
        go_on.wait(30)
        time.sleep(0.05)
        if action == "register another":
            other.attach()
        else:
            found = getattr(probe, action)
            done.append(found() if callable(found) else found)

    probe = fprobe.attach("leaf", entry=entry).attach()
    calling = threading.Thread(target=module["leaf"], args=(1,), daemon=True)
    calling.start()
    assert entered.wait(30)
    leaving = threading.Thread(target=probe.detach, daemon=True)
    leaving.start()
    go_on.set()
    for thread in (calling, leaving):
        thread.join(30)
        assert not thread.is_alive(), "deadlock"
    other.detach()
    assert probe.fp.errors.first is None
    assert_untouched()


@isolated(shared=True)
def test_stubs_a_site_that_is_attached_again_uses_its_stub_again():
    import ctypes

    import fprobe
    from programs import site_of

    module = basic()
    targets = set()
    for _ in range(5):
        with fprobe.attach("leaf", entry=lambda *hit: 0):
            targets.add(ctypes.string_at(site_of(module, "leaf"), 5))
        with fprobe.attach("*", exit=lambda *hit: None):
            targets.add(ctypes.string_at(site_of(module, "leaf"), 5))
    assert len(targets) == 1 and targets.pop()[0] == 0xE9


@isolated(shared=True)
def test_unload_with_frames_in_flight_is_busy_and_names_them():
    import ctypes
    import errno
    import threading

    import fprobe
    import sandbox
    from ftrace.core.tracer import tracer

    module = sandbox.load(
        "define i64 @waits(ptr %f, i64 %x) noinline { %r = call i64 %f(i64 %x)  %s = add i64 %r, 0  ret i64 %s }\n",
        name="waiting",
    )
    entered, go_on = threading.Event(), threading.Event()

    def body(x):
        entered.set()
        go_on.wait(30)
        return x

    callback = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(body)
    # By its bare address: calls from Python that the module knows of are refused before any notifier is asked.
    waits = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)(module.symbol("waits").address)
    results = []
    thread = threading.Thread(target=lambda: results.append(waits(ctypes.cast(callback, ctypes.c_void_p), 7)))
    with fprobe.attach("waits", exit=lambda *hit: None) as probe:
        thread.start()
        assert entered.wait(30)
        for _ in range(3):
            try:
                module.unload()
            except OSError as error:
                assert error.errno == errno.EBUSY and "waits" in str(error)
            else:
                raise AssertionError("unloaded under a running call")
        probe.detach()
        try:
            module.unload()  # the call still returns through the stub
        except OSError as error:
            assert error.errno == errno.EBUSY
        else:
            raise AssertionError("unloaded under a running call")
        go_on.set()
        thread.join(30)
        assert results == [7]
        module.unload()
    assert tracer().table.block_of(module) is None


@isolated(shared=True)
def test_unload_a_probe_on_that_module_alone_does_not_spread_to_the_next():
    """FT-24, FT-72, FT-29: a filter whose functions have all gone selects nothing, not everything."""
    import fprobe
    import sandbox

    ir = "define i64 @{0}(i64 %x) noinline {{ %r = add i64 %x, 1  ret i64 %r }}\n"
    first = sandbox.load(ir.format("gone"), name="first")
    with fprobe.attach("gone", entry=lambda *hit: 0) as probe:
        first["gone"](1)
        first.unload()
        assert probe.targets == []
        second = sandbox.load(ir.format("later"), name="second")
        assert probe.targets == []
        second["later"](1)
        assert probe.hits == 1
    assert_untouched()


@isolated(shared=True)
def test_unload_a_filter_set_before_does_not_reach_into_the_module_that_has_gone():
    import sandbox
    from ftrace.core import ops as ftrace

    module = basic()
    ops = ftrace.ftrace_ops()
    ftrace.ftrace_set_filter(ops, "leaf")
    module.unload()
    other = sandbox.load("define i64 @fresh(i64 %x) noinline { ret i64 %x }\n", name="fresh")
    ops.func = print
    ftrace.register_ftrace_function(ops)
    assert [str(location) for location in ops.selection().each()] == []
    ftrace.unregister_ftrace_function(ops)
    assert other["fresh"](3) == 3


@isolated(shared=True)
def test_ft79_a_probe_on_everything_covers_a_module_loaded_later():
    import fprobe
    import sandbox

    basic()
    seen = []
    with fprobe.attach("*", entry=lambda fp, ip, ret, regs, data: seen.append(ip)) as probe:
        before = probe.targets
        module = sandbox.load("define i64 @fresh(i64 %x) noinline { ret i64 %x }\n", name="fresh")
        module["fresh"](3)
        assert probe.targets == before and seen == []  # FT-24: `*` is a filter of addresses, not the empty one
    assert_untouched()


@isolated(shared=True)
def test_unload_refused_by_somebody_else_leaves_the_probes_on():
    """Whoever had consented before the refusal is told that the module stays."""
    import errno

    import fprobe
    import sandbox
    from sandbox.loading.module import ModuleState

    module = basic()
    probe = fprobe.attach("leaf", entry=lambda *hit: 0).attach()

    def refuses(event, which):
        if event is ModuleState.GOING:
            raise OSError(errno.EBUSY, "not now")

    sandbox.register_module_notifier(refuses)
    try:
        module.unload()
    except OSError as error:
        assert error.errno == errno.EBUSY
    sandbox.unregister_module_notifier(refuses)
    module["leaf"](1)
    assert probe.hits == 1 and probe.targets == ["leaf"]
    probe.detach()
    assert_untouched()


@pytest.mark.stress
@pytest.mark.parametrize("times", [500, pytest.param(3000, marks=pytest.mark.stress)])
@isolated
def test_lists_and_counters_are_freed_when_the_last_call_has_returned(times):
    """Thousands of registrations do not run out of counter lines, lists or memory."""
    import fprobe
    from ftrace.core.tracer import tracer

    module = basic()
    before = text_of(module)
    for i in range(times):
        with fprobe.attach("l*", action=fprobe.Count()), fprobe.attach("leaf", exit=lambda *hit: None):
            if i % 100 == 0:
                module["loop"](2)
    table = tracer().table
    assert table.lines._used <= 8
    assert len(table.lists._by_address) <= 4 and len(table.lists._retired) <= 2
    assert text_of(module) == before


@isolated(shared=True)
def test_fork_in_the_midst_of_a_pools_switch_and_of_a_take_leaves_the_child_a_whole_pool():
    """What threads that are not in the child had in hand, or had begun, is put right there (FP-26, FP-28)."""
    import os

    import fprobe
    from ftrace.hit.records import SWITCHING

    module = basic()
    with fprobe.attach("factorial", action=fprobe.Stat(), nr_maxactive=5) as probe:
        module["factorial"](3)
        record = probe.fp.ops.probe.native
        record.pool_unclaimed -= 2  # as if two threads had one each in hand
        for switching in (0, SWITCHING):
            record.flags |= switching
            child = os.fork()
            if child == 0:
                before = probe.counts
                module["factorial"](9)
                missed = probe.counts.missed_nodes - before.missed_nodes
                os._exit(0 if missed == 9 - 5 else 100 + missed)
            assert os.waitpid(child, 0)[1] == 0
        record.flags &= ~SWITCHING
        record.pool_unclaimed += 2


@isolated(shared=True)
def test_fork_from_an_entry_handler_keeps_the_nodes_that_are_in_hand():
    import os

    import fprobe

    module = basic()
    children = []

    def entry(fp, ip, ret, regs, data):
        if regs.di == 3 and not children:
            children.append(os.fork())

    with fprobe.attach("factorial", entry=entry, exit=lambda *hit: None, nr_maxactive=4) as probe:
        result = module["factorial"](6)  # 6, 5, 4 and 3 have all four nodes; 2 and 1 miss
        good = result == 720 and probe.counts.missed_nodes == 2 and module["factorial"](4) == 24
        good = good and probe.counts.missed_nodes == 2 and probe.fp.errors.first is None
        if children == [0]:
            os._exit(0 if good else 1)
        assert good, probe.counts
        assert os.waitpid(children[0], 0)[1] == 0


@isolated(shared=True)
def test_fork_while_another_thread_loads_a_module():
    """The lock of the list of modules is free in the child."""
    import os
    import threading

    import sandbox

    entered, go_on = threading.Event(), threading.Event()

    def slow(event, module):
        if not entered.is_set():
            entered.set()
            go_on.wait(30)

    sandbox.register_module_notifier(slow)
    thread = threading.Thread(target=basic)
    thread.start()
    assert entered.wait(30)
    child = os.fork()
    if child == 0:
        entered.set()
        os._exit(0 if basic()["leaf"](1) == 2 else 1)
    _, status = os.waitpid(child, 0)
    go_on.set()
    thread.join()
    assert status == 0


@pytest.mark.parametrize("first", ["kprobes.breakpoint.patching", "ftrace.core.tracer"])
@isolated(shared=True)
def test_fork_while_another_thread_goes_from_the_kprobes_lock_to_ftraces(first):
    """The locks that a fork holds are taken in the order in which they are taken elsewhere, whichever was there first."""
    import importlib
    import os
    import threading
    import time

    importlib.import_module(first)
    from ftrace.core.tracer import tracer

    basic()
    lock = tracer().table.lock
    from kprobes.breakpoint.patching import kprobe_mutex

    entered, got = threading.Event(), []

    def register():
        with kprobe_mutex:
            entered.set()
            time.sleep(0.2)  # by now the other thread is about to fork
            got.append(lock.acquire(timeout=30))
            lock.release()

    thread = threading.Thread(target=register)
    thread.start()
    assert entered.wait(30)
    child = os.fork()
    if child == 0:
        os._exit(0 if lock.acquire(timeout=30) and kprobe_mutex.acquire(timeout=30) else 1)
    _, status = os.waitpid(child, 0)
    thread.join()
    assert got == [True] and status == 0


@isolated(shared=True)
def test_fork_while_another_thread_is_filling_a_node():
    """What lies in a node between its reservation and its use is not believed."""
    import ctypes
    import os
    import threading

    import fprobe
    from ftrace.core.runtime import runtime
    from sandbox.threads.tasks import NODE, Node

    module = basic()
    with fprobe.attach("leaf", exit=lambda *hit: None, nr_maxactive=1) as probe:
        ready, go_on = threading.Event(), threading.Event()

        def other():
            module["leaf"](1)
            ready.set()
            go_on.wait(30)

        thread = threading.Thread(target=other)
        thread.start()
        assert ready.wait(30)
        task = next(task for task in runtime().tasks() if task.tid == thread.native_id)
        node = Node.ctypes.from_address(task.bottom + NODE)
        node.stub, node.probes, node.frame = 1 << 40, 1 << 41, 1 << 42  # nothing is mapped there
        task.rec, task.top = 1, ctypes.addressof(node)
        child = os.fork()
        if child == 0:
            good = module["leaf"](1) == 2 and probe.counts == (2, *[0] * 7) and not runtime().shadow_ips()
            os._exit(0 if good else 1)
        task.rec, task.top = 0, task.bottom
        assert os.waitpid(child, 0)[1] == 0
        go_on.set()
        thread.join()
