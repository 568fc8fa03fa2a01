"""HAZARDS 10: one object, many threads. Whoever comes second is refused, or finds that it has been done."""

from __future__ import annotations

import ctypes
import errno
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from isolation import isolated
from programs import assert_untouched, basic
from sampled import sampled
from shared_objects import Caller, Shared, contend, entered, left, pre, returned, seen

import fprobe
import kprobes
import sandbox
from fprobe.tracefs import tracefs
from ftrace.core import ops as ftrace
from ftrace.core.direct import modify_ftrace_direct, register_ftrace_direct, unregister_ftrace_direct
from ftrace.core.tracer import tracer

ROUNDS = 2
BOTH_WAYS = ("register", "unregister")


def always() -> bool:
    return True


def again(p: kprobes.kprobe, address: int, register: Callable[[], None]) -> None:
    """At the address that taking off twice clears."""
    p.addr = address
    register()


def kprobe(module: Any, offset: int) -> Shared:
    address = module.symbol("leaf").address + offset
    p = kprobes.kprobe(pre_handler=pre)
    verbs = {
        "register": partial(again, p, address, partial(kprobes.register_kprobe, p)),
        "unregister": partial(kprobes.unregister_kprobe, p),
        "disable": partial(kprobes.disable_kprobe, p),
        "enable": partial(kprobes.enable_kprobe, p),
    }
    return Shared(verbs, lambda: p.registered, lambda: not p.is_off, partial(module["leaf"], 1), lambda: seen[0])


def kretprobe(module: Any) -> Shared:
    address = module.symbol("leaf").address
    rp = kprobes.kretprobe(handler=returned)
    verbs = {
        "register": partial(again, rp.kp, address, partial(kprobes.register_kretprobe, rp)),
        "unregister": partial(kprobes.unregister_kretprobe, rp),
        "disable": partial(kprobes.disable_kretprobe, rp),
        "enable": partial(kprobes.enable_kretprobe, rp),
    }
    return Shared(verbs, lambda: rp.registered, lambda: not rp.kp.is_off, partial(module["leaf"], 1), lambda: seen[0])


def probe(module: Any) -> Shared:
    fp = fprobe.fprobe(entered, left)
    verbs = {
        "register": partial(fprobe.register_fprobe, fp, "leaf"),
        "unregister": partial(fprobe.unregister_fprobe, fp),
        "disable": partial(fprobe.disable_fprobe, fp),
        "enable": partial(fprobe.enable_fprobe, fp),
    }
    call, on = partial(module["leaf"], 1), lambda: not fprobe.fprobe_disabled(fp)
    return Shared(verbs, lambda: fp.registered, on, call, lambda: seen[1], BOTH_WAYS)


def attachment(module: Any) -> Shared:
    """With an action, which has memory of its own."""
    made = fprobe.attach("leaf", action=fprobe.Stat())
    return attached(made, module, lambda: made.hits, lambda: made.fp.registered)


def kprobe_attachment(module: Any) -> Shared:
    made = kprobes.attach(f"{module.name}:leaf+5", pre=pre)
    return attached(made, module, lambda: seen[0], lambda: made.p.registered)


def kretprobe_attachment(module: Any) -> Shared:
    made = kprobes.attach_return(f"{module.name}:leaf", returned)
    return attached(made, module, lambda: seen[0], lambda: made.rp.registered)


def attached(made: Any, module: Any, hits: Callable[[], int], registered: Callable[[], bool]) -> Shared:
    """What is detached may be detached again: nobody is refused."""
    verbs = {"attach": made.attach, "detach": made.detach}
    call, ways = partial(module["leaf"], 1), ("attach", "detach")
    return Shared(verbs, registered, always, call, hits, ("attach",), ways, ("detach",))


def kprobes_of_a_glob(module: Any) -> Shared:
    made = kprobes.attach(f"{module.name}:l[e-o]*", pre=pre)
    return attached(made, module, lambda: seen[0], lambda: bool(made.probes) and made.p.registered)


def events(module: Any) -> Shared:
    """A kprobe's, a kretprobe's and an fprobe's event, which are attached together."""
    leaf = f"{module.name}:leaf"
    made = fprobe.event(f"p:shared/p {leaf}+5", f"r:shared/r {leaf}", f"f:shared/f {leaf}")
    return attached(made, module, lambda: made.hits // 3, lambda: made.attached)


def instance(module: Any) -> Shared:
    """With a tracer: nothing counts its hits."""

    def only_one(call: Callable[[str], None]) -> None:
        try:
            call("instances/shared")
        except (FileExistsError, FileNotFoundError) as error:
            raise OSError(errno.EBUSY, error.strerror) from error

    def trace() -> None:
        only_one(lambda path: tracefs.write(f"{path}/current_tracer", "function"))

    verbs = {"make": partial(only_one, tracefs.mkdir), "remove": partial(only_one, tracefs.rmdir), "trace": trace}
    there = partial(tracefs.is_directory, "instances/shared")
    call, ways = partial(module["leaf"], 1), ("make", "remove")
    return Shared(verbs, there, lambda: False, call, lambda: 0, ways, ways)


def callback(module: Any) -> Shared:
    hits: list[int] = []
    ops = ftrace.ftrace_ops(lambda *_: hits.append(1))
    verbs = {
        "filter": partial(ftrace.ftrace_set_filter, ops, "leaf"),
        "register": partial(ftrace.register_ftrace_function, ops),
        "unregister": partial(ftrace.unregister_ftrace_function, ops),
        "free": partial(ftrace.ftrace_free_filter, ops),
    }
    return Shared(verbs, lambda: ops.enabled, always, partial(module["leaf"], 1), lambda: len(hits), BOTH_WAYS)


def direct(module: Any) -> Shared:
    code = direct_functions()
    first, second = (code.symbol(name).address for name in ("first", "second"))
    ops = ftrace.ftrace_ops()
    ftrace.ftrace_set_filter(ops, "leaf")
    verbs = {
        "register": partial(register_ftrace_direct, ops, first),
        "modify": partial(modify_ftrace_direct, ops, second),
        "unregister": lambda: unregister_ftrace_direct(ops, ops.direct_call),
    }
    count = ctypes.c_uint64.from_address(next(symbol.address for symbol in code.data if symbol.name == "direct_count"))
    return Shared(verbs, lambda: ops.enabled, always, partial(module["leaf"], 1), lambda: count.value, BOTH_WAYS)


def direct_functions() -> Any:
    """Two that count calls, in the same place."""
    lines = [".text"]
    for name in ("first", "second"):
        lines += [f".globl {name}", f".type {name},@function", f"{name}:", "lock incq direct_count(%rip)", "ret"]
        lines += [f".size {name}, .-{name}"]
    text = "\n".join(f'module asm "{line}"' for line in lines)
    return sandbox.load(f"{text}\n@direct_count = global i64 0\n", name="direct_functions")


MADE: dict[str, Callable[[Any], Shared]] = {
    "kprobe_at_an_instruction": partial(kprobe, offset=5),
    "kprobe_at_a_stub": partial(kprobe, offset=0),
    "kretprobe_at_a_stub": kretprobe,
    "kretprobe_at_an_instruction": kretprobe,
    "fprobe": probe,
    "attachment": attachment,
    "kprobe_attachment": kprobe_attachment,
    "kretprobe_attachment": kretprobe_attachment,
    "kprobes_of_a_glob": kprobes_of_a_glob,
    "events": events,
    "instance": instance,
    "callback": callback,
    "direct": direct,
}


def at_one(kind: str, rounds: int) -> None:
    module = basic(flavour="none") if kind == "kretprobe_at_an_instruction" else basic()
    contend(MADE[kind](module), rounds)
    assert_untouched()


@pytest.mark.parametrize("kind", sampled(MADE, 2))
@isolated(timeout=100)
def test_two_threads_at_one(kind):
    at_one(kind, ROUNDS)


@pytest.mark.stress
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", MADE)
@isolated(timeout=800)
def test_two_threads_at_one_for_long(kind):
    at_one(kind, 400)


@isolated
def test_an_fprobe_that_one_thread_registers_while_others_take_it_off():
    """What the last of them cleans up is not the new registration's."""
    sys.setswitchinterval(1e-5)
    module = basic()
    fp = fprobe.fprobe(entered, left)
    ended = threading.Event()
    errors: list[BaseException] = []

    def take_off() -> None:
        while not ended.is_set():
            try:
                fprobe.unregister_fprobe(fp)
            except OSError as error:
                if error.errno not in (errno.EBUSY, errno.EINVAL):
                    errors.append(error)

    threads = [threading.Thread(target=take_off) for _ in range(2)]
    for thread in threads:
        thread.start()
    with Caller(partial(module["leaf"], 1)):
        for _ in range(400):
            try:
                fprobe.register_fprobe(fp, "leaf")
            except OSError as error:
                assert error.errno == errno.EBUSY
            with tracer().table.lock:
                assert fp.ops.filter_hash.count() == 1 or not fp.registered
    ended.set()
    for thread in threads:
        thread.join()
    if fp.registered:
        fprobe.unregister_fprobe(fp)
    assert not errors
    assert_untouched()


@isolated
def test_detach_all_while_others_detach():
    sys.setswitchinterval(1e-5)
    basic()
    ended = threading.Event()
    errors: list[BaseException] = []

    def work(name: str) -> None:
        try:
            while not ended.is_set():
                with fprobe.attach(name, entry=entered):
                    pass
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in ("leaf", "other")]
    for thread in threads:
        thread.start()
    for _ in range(200):
        fprobe.detach_all()
    ended.set()
    for thread in threads:
        thread.join()
    assert not errors
    assert_untouched()


@isolated
def test_an_attachment_that_is_attached_twice_keeps_what_it_has():
    """The memory of its action was given back, with the handlers still running."""
    module = basic()
    stat = fprobe.Stat()
    probe = fprobe.attach("leaf", action=stat).attach()
    module["leaf"](1)
    with pytest.raises(OSError, match="already registered"):
        probe.attach()
    module["leaf"](1)
    assert [one.hits for one in stat.functions().values()] == [2]
    probe.detach()


@isolated
def test_an_action_serves_one_attachment_at_a_time():
    module = basic()
    stat = fprobe.Stat()
    with fprobe.attach("leaf", action=stat):
        module["leaf"](1)
        with pytest.raises(OSError, match="this Stat is in use") as refused:
            fprobe.attach("other", action=stat).attach()
        assert refused.value.errno == errno.EBUSY
        with pytest.raises(OSError, match="in use"):
            stat.close()
        module["leaf"](1)
    assert [one.hits for one in stat.functions().values()] == [2]
    with fprobe.attach("other", action=stat):
        module["other"](1)
    assert [one.hits for one in stat.functions().values()] == [1]
    stat.close()
    assert stat.functions() == {}


@pytest.mark.stress
@isolated
def test_counts_of_an_fprobe_that_is_being_taken_off_never_go_back():
    module = basic()
    for _ in range(100):
        fp = fprobe.fprobe(entered, left)
        fprobe.register_fprobe(fp, "leaf")
        module["leaf"](1)
        thread = threading.Thread(target=fprobe.unregister_fprobe, args=(fp,))
        thread.start()
        found = [fp.hits]
        while thread.is_alive():
            found.append(fp.hits)
        thread.join()
        assert {*found, fp.hits} == {1}


@pytest.mark.stress
@isolated
def test_a_module_that_several_threads_unload_and_call():
    errors: list[Any] = []

    def attempt(verb: Callable[[], Any], allowed: tuple[type[Exception], ...]) -> None:
        together.wait()
        try:
            verb()
        except allowed:
            pass
        except BaseException as error:
            errors.append(error)

    for number in range(60):
        module = basic()
        name, leaf = module.name, module["leaf"]
        verbs = [module.unload, module.unload, partial(leaf, 1), lambda name=name: sandbox.load("", name=name).unload()]
        together = threading.Barrier(len(verbs))
        threads = [threading.Thread(target=attempt, args=(verb, (OSError, ValueError))) for verb in verbs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        module.unload()
        assert not errors, number


@isolated
def test_the_global_switch_by_several_threads():
    """KP-59: the probes are as the switch says at the end."""
    module = basic()
    p = kprobes.kprobe(symbol_name=f"{module.name}:leaf", offset=5, pre_handler=pre)
    kprobes.register_kprobe(p)

    def work(on: bool) -> None:
        for _ in range(100):
            kprobes.kprobes_enabled(on)

    threads = [threading.Thread(target=work, args=(on,)) for on in (True, False, True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert p.place.armed == kprobes.kprobes_enabled()
    kprobes.kprobes_enabled(True)
    module["leaf"](1)
    assert seen[0] == 1


@isolated
def test_a_child_that_is_forked_while_another_thread_registers_can_register_itself():
    """What that thread has claimed ends with the fork: the child does not have it."""
    import os

    module = basic()
    fp = fprobe.fprobe(entered, left)
    inside, go_on = threading.Event(), threading.Event()

    def prepare(functions: int) -> None:
        inside.set()
        go_on.wait(20)

    fp.prepare = prepare
    thread = threading.Thread(target=fprobe.register_fprobe, args=(fp, "leaf"))
    thread.start()
    inside.wait(20)
    child = os.fork()
    if child == 0:
        fp.prepare = None
        fprobe.register_fprobe(fp, "leaf")
        module["leaf"](1)
        os._exit(0 if fp.hits == 1 else 1)
    with pytest.raises(OSError, match="another thread is registering") as refused:
        fprobe.register_fprobe(fp, "leaf")
    assert refused.value.errno == errno.EBUSY
    go_on.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    fprobe.unregister_fprobe(fp)
