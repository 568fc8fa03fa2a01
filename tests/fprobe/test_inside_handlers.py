"""Handlers that use the API, raise, call what is probed, or block: what docs/fprobe.md says of them."""

# ruff: noqa: ARG005  (the signature of a handler is given)

from __future__ import annotations

import ctypes
import errno
import signal
import threading
import time

import pytest
from isolation import isolated
from programs import basic, is_patched

import fprobe
import sandbox
from ftrace.core.ops import ftrace_ops, ftrace_set_filter, register_ftrace_function, unregister_ftrace_function


@pytest.fixture(scope="module")
def program():
    module = basic()
    yield module
    module.unload()


@pytest.fixture
def later():
    """Probes that a handler attaches; detached at the end."""
    probes = []
    yield probes
    for probe in probes:
        probe.detach()


# -- registering ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["entry", "exit"])
def test_a_probe_registered_from_a_handler_of_the_same_function_sees_the_next_call(program, later, where):
    order = []

    def first(fp, ip, ret, regs, data):
        order.append("first")
        if not later:
            later.append(
                fprobe.attach("leaf", entry=lambda *hit: order.append("in"), exit=lambda *hit: order.append("out"))
            )
            later[0].attach()

    with fprobe.attach("leaf", **{where: first}) as probe:
        assert program["leaf"](1) == 2
        assert order == ["first"]
        assert program["leaf"](1) == 2
    assert probe.fp.errors.first is None
    assert order == ["first", "in", "first", "out"]  # the newer one's entry comes first, and its exit last


def test_a_probe_registered_from_a_handler_sees_what_the_body_calls(program, later):
    seen = []

    def entry(*hit):
        if not later:
            later.append(fprobe.attach("leaf", entry=lambda *hit: seen.append(1)).attach())

    with fprobe.attach("twice", entry=entry) as probe:
        assert program["twice"](1) == 3
    assert seen == [1, 1] and probe.fp.errors.first is None


def test_a_registration_that_fails_inside_a_handler_raises_there(program):
    found = []

    def entry(*hit):
        with pytest.raises(OSError) as caught:
            fprobe.attach("no_such_function").attach()
        found.append(caught.value.errno)

    with fprobe.attach("leaf", entry=entry):
        program["leaf"](1)
    assert found == [errno.EINVAL]


def test_its_own_registration_from_inside_is_busy(program):
    found = []

    def entry(fp, *rest):
        with pytest.raises(OSError) as caught:
            fprobe.register_fprobe(fp, "other")
        found.append(caught.value.errno)

    with fprobe.attach("leaf", entry=entry):
        program["leaf"](1)
        assert not is_patched(program, "other")
    assert found == [errno.EBUSY]


# -- unregistering ----------------------------------------------------------------------------------------------


def test_a_handler_that_unregisters_itself_is_not_called_again_and_its_exit_neither(program):
    seen = []

    def entry(fp, *rest):
        seen.append("entry")
        fprobe.unregister_fprobe(fp)

    probe = fprobe.attach("leaf", entry=entry, exit=lambda *hit: seen.append("exit")).attach()
    assert program["twice"](1) == 3
    assert seen == ["entry"] and not is_patched(program, "leaf") and probe.counts.hits == 1


@pytest.mark.parametrize("with_exit", [False, True])
def test_a_handler_that_unregisters_another_of_the_same_function(program, with_exit):
    """FP-47: the walk goes on, but what has been unregistered is passed over, with a pool (FP-45) or without."""
    seen = []
    exit_ = {"exit": lambda *hit: seen.append("older exit")} if with_exit else {}
    older = fprobe.attach("leaf", entry=lambda *hit: seen.append("older"), **exit_)

    def entry(*hit):
        seen.append("newer")
        if older.fp.registered:
            older.detach()

    older.attach()
    with fprobe.attach("leaf", entry=entry):
        assert program["twice"](1) == 3
    assert seen == ["newer", "newer"]


def test_ft40_a_callback_that_unregisters_another_of_the_same_function(program):
    seen = []
    older = ftrace_ops(lambda *hit: seen.append("older"))

    def callback(*hit):
        seen.append("newer")
        if older.enabled:
            unregister_ftrace_function(older)

    newer = ftrace_ops(callback)
    for ops in (older, newer):
        ftrace_set_filter(ops, "leaf")
        register_ftrace_function(ops)
    program["twice"](1)
    unregister_ftrace_function(newer)
    assert seen == ["newer", "newer"]


def test_a_handler_that_disables_its_probe(program):
    seen = []

    def entry(fp, *rest):
        seen.append("entry")
        fprobe.disable_fprobe(fp)

    with fprobe.attach("leaf", entry=entry, exit=lambda *hit: seen.append("exit")) as probe:
        program["twice"](1)
        assert seen == ["entry"]  # the exit asks again, and finds it disabled (FP-37)
        probe.enable()
        program["leaf"](1)
    assert seen == ["entry", "entry"] and probe.counts.missed == 0


# -- calling what is probed, raising ----------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["entry", "exit"])
def test_a_handler_that_calls_its_own_function_runs_once_more_within(program, where):
    depth = []

    def handler(fp, ip, ret, regs, data):
        depth.append(len(depth))
        assert program["leaf"](40) == 41

    with fprobe.attach("leaf", **{where: handler}) as probe:
        assert program["leaf"](1) == 2
    assert depth == [0, 1] and probe.counts.missed_recursion == probe.fp.nmissed == 1
    assert probe.fp.errors.first is None


@pytest.mark.parametrize("where", ["entry", "exit"])
def test_a_handler_that_raises_is_as_one_that_returned_0(program, where, caplog):
    others = []

    def handler(fp, ip, ret, regs, data):
        raise KeyError(regs.ax)

    with (
        fprobe.attach("leaf", entry=lambda *hit: others.append("in") or 0, exit=lambda *hit: others.append("out")),
        fprobe.attach("leaf", **{where: handler, "exit" if where == "entry" else "entry": lambda *hit: 0}) as probe,
    ):
        assert program["twice"](1) == 3
    assert others == ["in", "out"] * 2
    assert probe.fp.errors.count == 2 and isinstance(probe.fp.errors.first, KeyError)
    assert len(caplog.records) == 1 and probe.counts.hits == 2 and probe.counts.missed == 0


@pytest.fixture
def interrupts():
    """Also where the suite runs in the background of a shell, which lets such ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
@pytest.mark.parametrize("where", ["entry", "exit"])
def test_an_interrupt_in_a_handler_is_raised_where_the_program_was_called(program, where):
    """Handlers that come in between end by it too; the program does not."""
    seen = []

    def handler(*hit):
        seen.append(1)
        if len(seen) == 3:
            signal.raise_signal(signal.SIGINT)

    with fprobe.attach("leaf", **{where: handler}) as probe:
        with pytest.raises(KeyboardInterrupt):
            program["loop"](10)
        assert probe.hits == 10 and probe.fp.errors.count >= 1
        assert isinstance(probe.fp.errors.first, KeyboardInterrupt)
        count = probe.fp.errors.count
        assert program["leaf"](1) == 2 and probe.fp.errors.count == count, "it is over"


# -- blocking ---------------------------------------------------------------------------------------------------


def test_a_handler_that_blocks_holds_up_its_thread_only(program):
    inside, go_on = threading.Event(), threading.Event()
    main = threading.get_ident()

    def entry(*hit):
        if threading.get_ident() != main:
            inside.set()
            assert go_on.wait(30)

    with fprobe.attach("leaf", entry=entry) as probe:
        thread = threading.Thread(target=program["leaf"], args=(1,))
        thread.start()
        assert inside.wait(30)
        assert program["loop"](10) == 10  # other threads go through the same probe
        with fprobe.attach("other", entry=lambda *hit: 0) as other:  # and registering waits for nobody
            assert program["other"](1) == 3
            fprobe.disable_fprobe(probe.fp)
            fprobe.enable_fprobe(probe.fp)
            go_on.set()
        thread.join(30)
    assert probe.fp.errors.first is None and other.hits == 1 and probe.hits == 11


def test_unregistering_waits_for_a_handler_that_blocks_until_it_is_done(program):
    inside, events = threading.Event(), []

    def entry(*hit):
        inside.set()
        time.sleep(0.05)
        events.append("handler over")

    probe = fprobe.attach("leaf", entry=entry).attach()
    thread = threading.Thread(target=program["leaf"], args=(1,))
    thread.start()
    assert inside.wait(30)
    probe.detach()
    events.append("unregistered")
    thread.join(30)
    assert events == ["handler over", "unregistered"]


@isolated(timeout=20)
def test_two_threads_that_unregister_from_handlers_do_not_wait_for_each_other():
    """HAZARDS 5: each is inside what the other waits for."""
    program, together = basic(), threading.Barrier(2, timeout=30)

    def one(*hit):
        together.wait()
        probes["other"].detach()

    def other(*hit):
        together.wait()
        probes["leaf"].detach()

    probes = {name: fprobe.attach(name, entry=entry).attach() for name, entry in (("leaf", one), ("other", other))}
    threads = [threading.Thread(target=program[name], args=(1,)) for name in probes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert not any(probe.fp.registered for probe in probes.values())


# -- handlers of a loaded module --------------------------------------------------------------------------------

MACHINE_CODE = """
declare i64 @leaf(i64)
declare i32 @usleep(i32)
@runs = global i64 0
@results = global i64 0
define i32 @calls_leaf(i64 %fp, i64 %ip, i64 %ret, ptr %regs, ptr %data) {
  %n = load i64, ptr @runs
  %more = add i64 %n, 1
  store i64 %more, ptr @runs
  %r = call i64 @leaf(i64 40)
  %s = load i64, ptr @results
  %t = add i64 %s, %r
  store i64 %t, ptr @results
  ret i32 0
}
define i32 @sleeps(i64 %fp, i64 %ip, i64 %ret, ptr %regs, ptr %data) {
  store i64 1, ptr @runs
  call i32 @usleep(i32 50000)
  store i64 2, ptr @runs
  ret i32 0
}
"""


@pytest.fixture
def machine_code(program):
    """Handlers in machine code that is not ours, and a view of their variables."""
    address = program.symbol("leaf").address
    source = MACHINE_CODE.replace("declare i64 @leaf(i64)\n", "").replace(
        "call i64 @leaf(", f"call i64 inttoptr (i64 {address} to ptr)("
    )
    module = sandbox.load(source, name="machine_code")

    def variable(name):
        symbol = next(symbol for symbol in module.data if symbol.name == name)
        return ctypes.c_uint64.from_address(symbol.address).value

    yield module, variable
    module.unload()


@pytest.mark.parametrize("where", ["entry", "exit"])
def test_a_handler_in_machine_code_that_calls_its_own_function(program, machine_code, where):
    module, variable = machine_code
    with fprobe.attach("leaf", **{where: module["calls_leaf"]}) as probe:
        assert program["leaf"](1) == 2
    assert variable("runs") == 2 and variable("results") == 82
    assert probe.counts.missed_recursion == probe.fp.nmissed == 1


def test_unregistering_waits_for_a_handler_in_machine_code_that_sleeps(program, machine_code):
    module, variable = machine_code
    probe = fprobe.attach("leaf", entry=module["sleeps"]).attach()
    thread = threading.Thread(target=program["leaf"], args=(1,))
    thread.start()
    while not variable("runs"):
        time.sleep(0.001)
    probe.detach()
    assert variable("runs") == 2
    thread.join(30)
