"""A hit of a breakpoint: what the handlers see, what they may change, and that nothing else does (KP-27, KP-34..39)."""

# ruff: noqa: ARG005 (handlers take what handlers are given)

from __future__ import annotations

import ctypes
import errno
import signal
import threading

import pytest
from alarms import alarms
from isolation import isolated
from kprobe_targets import ARGUMENTS, FUNCTIONS, call, instructions, load, results
from programs import basic
from sampled import in_stress

import fprobe
import kprobes
from kprobes import checks, optimization
from sandbox.native import u64

seen = fprobe.Array(u64, 4, shared=True)


@kprobes.native
def count_pre(p, regs):
    seen[0] += 1


@kprobes.native
def count_post(p, regs, flags):
    seen[1] += 1


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
def c_pre(_p, _regs):
    return 0


def probe_all(module, names, **handlers):
    """A kprobe on every instruction that can have one, and the errnos of those that cannot."""
    probes, refused = [], []
    for name in names:
        for address in instructions(module, name):
            p = kprobes.kprobe(addr=address, **handlers)
            try:
                kprobes.register_kprobe(p)
            except OSError as error:
                refused.append(error.errno)
            else:
                probes.append(p)
    return probes, refused


HANDLERS = {
    "none": {},
    "native pre": {"pre_handler": count_pre},
    "native both": {"pre_handler": count_pre, "post_handler": count_post},
    "python both": {"pre_handler": lambda p, regs: 0, "post_handler": lambda p, regs, flags: None},
    "c and native": {"pre_handler": c_pre, "post_handler": count_post},
}


@isolated(shared=True)
@pytest.mark.parametrize("kind", HANDLERS)
@pytest.mark.parametrize("preemptible", [True, in_stress(False)])
def test_every_kind_of_instruction_does_what_it_does_unprobed(kind, preemptible):
    """KP-27..34, KP-38: stepped, boosted and emulated; red zone, flags and vectors are as they were."""
    optimization.set_kprobes_optimization(0)
    checks.preemptible = preemptible
    module = load()
    expected = results(module)
    probes, refused = probe_all(module, FUNCTIONS, **HANDLERS[kind])
    assert set(refused) <= {errno.EILSEQ}, refused  # ud2
    assert results(module) == expected
    threads = [threading.Thread(target=lambda: found.append(results(module))) for _ in range(2)]
    found: list = []
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected, expected]
    assert sum(p.nmissed for p in probes) == 0
    kprobes.unregister_kprobes(probes)
    assert results(module) == expected


@isolated(shared=True)
def test_native_handlers_see_each_hit_once():
    """KP-36, KP-39: pre and post of a probe on each instruction, counted against how often it is executed."""
    optimization.set_kprobes_optimization(0)
    module = load()
    counts = {}
    for name in ("divides", "red_zone", "vectors", "stack"):
        probes, _ = probe_all(module, [name], pre_handler=count_pre, post_handler=count_post)
        seen.clear()
        for a, b in ARGUMENTS:
            call(module, name, a, b)
        counts[name] = (seen[0], seen[1], len(probes) * len(ARGUMENTS))
        kprobes.unregister_kprobes(probes)
    assert all(pre == post == wanted for pre, post, wanted in counts.values()), counts


@kprobes.native
def divide_by_nothing(p, regs):
    seen[0] = regs.di // (regs.di - regs.di)


@isolated(shared=True)
def test_mishaps_of_native_handlers_are_counted():
    module = load()
    with kprobes.attach("stack", pre=divide_by_nothing):
        for _ in range(3):
            call(module, "stack", 30, 12)
    assert fprobe.native_mishaps(divide_by_nothing) == (3, 0)


@isolated(shared=True)
def test_kp36_what_the_handlers_see():
    optimization.set_kprobes_optimization(0)
    module = load()
    address = instructions(module, "stack")[2]  # push %rdi
    lines = []

    def pre(p, regs):
        lines.append(("pre", regs.ip - p.addr, regs.di, regs.si, regs.sp % 16))

    def post(p, regs, flags):
        lines.append(("post", regs.ip - p.addr, flags, ctypes.c_uint64.from_address(regs.sp).value))

    with kprobes.attach(address, pre=pre, post=post):
        assert call(module, "stack", 30, 12) == 42
    assert lines == [("pre", 1, 30, 12, 0), ("post", 1, 0, 30)]


@isolated(shared=True)
def test_kp36_a_handler_changes_registers_and_the_path():
    """What is in regs when the handler returns is what the function goes on with; non-zero: it goes on at regs.ip."""
    optimization.set_kprobes_optimization(0)
    module = load()
    places = instructions(module, "divides")

    def replace(p, regs):
        regs.di = 100

    with kprobes.attach(places[0], pre=replace):
        assert call(module, "divides", 9, 7) == 100 // 7 + 100 % 7

    def skip(p, regs):
        regs.ax, regs.dx, regs.ip = 40, 2, places[4]
        return 1

    posts = []
    with kprobes.attach(places[3], pre=skip, post=lambda p, regs, flags: posts.append(regs.ip)):
        assert call(module, "divides", 9, 7) == 42
    assert posts == []


@isolated(shared=True)
def test_a_handler_returns_from_the_function():
    """The stack pointer may change too: a pre_handler on the first instruction pops the return address."""
    optimization.set_kprobes_optimization(0)
    module = basic()

    def leave(p, regs):
        regs.ax = 1234
        regs.ip = ctypes.c_uint64.from_address(regs.sp).value
        regs.sp += 8
        return 1

    def push_far(p, regs):
        regs.sp -= 4096  # far below what the detour keeps
        return 0

    def pop_far(p, regs):
        regs.sp += 4096
        return 0

    with kprobes.attach("leaf+5", pre=leave):
        assert module["twice"](5) == 1234
    with kprobes.attach("leaf+5", pre=push_far), kprobes.attach("leaf+9", pre=pop_far):
        assert module["twice"](5) == 7


@isolated(shared=True)
def test_kp34_ret_with_an_operand_and_32_bit_counters():
    optimization.set_kprobes_optimization(0)
    module = load()
    expected = {(name, a, b): call(module, name, a, b) for name in ("drops", "loop32") for a, b in ARGUMENTS}
    _probes, _ = probe_all(module, ["drops", "loop32"], post_handler=lambda p, regs, flags: None)
    assert {key: call(module, *key) for key in expected} == expected


@isolated
def test_signals_arrive_while_probes_are_hit():
    """Asynchronous signals wait for the end of a step and of a native handler, and are not lost."""
    optimization.set_kprobes_optimization(0)
    checks.preemptible = True
    module = load()
    expected = results(module)
    probes, _ = probe_all(module, FUNCTIONS, pre_handler=count_pre, post_handler=count_post)
    with alarms(0.0005, lambda: call(module, "divides", 9, 7)) as arrived:
        for _ in range(20):
            assert results(module) == expected
    assert arrived
    assert set(arrived) == {9 // 7 + 9 % 7}
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()
    kprobes.unregister_kprobes(probes)


@isolated(shared=True)
def test_an_exception_of_a_handler_is_kept_and_the_function_goes_on():
    optimization.set_kprobes_optimization(0)
    module = basic()

    def pre(p, regs):
        raise ValueError("in a handler")

    with kprobes.attach("leaf+5", pre=pre) as probe:
        assert module["twice"](5) == 7
    assert str(probe.p.errors.first) == "in a handler"
    assert probe.p.errors.count == 2


@isolated(shared=True)
def test_threads_are_born_and_unregister_while_others_hit():
    """KP-57: after unregistering no handler runs."""
    optimization.set_kprobes_optimization(0)
    module = basic()
    stop = threading.Event()
    wrong = []

    def work():
        while not stop.is_set():
            if module["twice"](5) != 7:
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    calls = [0]
    for _ in range(50):
        with kprobes.attach("leaf+5", pre=count_pre, post=count_post), kprobes.attach("leaf+9", pre=count_pre):
            module["twice"](5)
        seen.clear()
        module["twice"](5)
        calls[0] += int(seen[0]) + int(seen[1])
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert calls == [0]


@isolated(shared=True)
def test_a_forked_child_hits_the_same_probes():
    import os

    optimization.set_kprobes_optimization(0)
    module = basic()
    hits = []
    with kprobes.attach("leaf+5", pre=lambda p, regs: hits.append(regs.di)):
        child = os.fork()
        if child == 0:
            good = module["twice"](5) == 7 and hits == [5, 6]
            os._exit(0 if good else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert hits == []
        assert module["twice"](7) == 9
    assert hits == [7, 8]


def _syscall(name: str, parameters: str, registers: str, arguments: str) -> str:
    constraints = f"={{rax}},{{rax}},{registers},~{{rcx}},~{{r11}},~{{memory}}"
    return f"""define i64 @{name}({parameters}) noinline {{
  %r = call i64 asm sideeffect "syscall", "{constraints}"(i64 {arguments})
  ret i64 %r
}}
"""


WAITS = _syscall("waits", "i64 %fd, ptr %to", "{rdi},{rsi},{rdx}", "0, i64 %fd, ptr %to, i64 1") + _syscall(
    "blocks", "i64 %how, ptr %set", "{rdi},{rsi},{rdx},{r10}", "14, i64 %how, ptr %set, i64 0, i64 8"
)


@isolated(shared=True)
@pytest.mark.parametrize("kind", ["native both", "python both", "c and native"])
def test_a_system_call_with_a_post_handler_holds_no_signal_off(kind):
    """It blocks as if no kprobe were running: a signal's handler runs meanwhile, and its own probes are hit."""
    import os

    import sandbox

    optimization.set_kprobes_optimization(0)
    checks.preemptible = True
    module = sandbox.load(WAITS, name="waits")
    kinds = load()
    syscalls = {
        name: next(at for at in instructions(module, name) if ctypes.string_at(at, 2) == b"\x0f\x05")
        for name in ("waits", "blocks")
    }
    reader, writer = os.pipe()
    inside = []

    def arrived(*_):
        inside.append((kprobes.kprobe_running(), call(kinds, "divides", 9, 7)))
        os.write(writer, b"x")

    on_alarm = ctypes.CFUNCTYPE(None, ctypes.c_int)(arrived)
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    libc.signal(signal.SIGALRM, ctypes.cast(on_alarm, ctypes.c_void_p))
    byte = ctypes.create_string_buffer(1)
    other = kprobes.kprobe(addr=instructions(kinds, "divides")[2], pre_handler=count_pre, post_handler=count_post)
    kprobes.register_kprobe(other)
    handlers = {name.removesuffix("_handler"): handler for name, handler in HANDLERS[kind].items()}
    seen.clear()
    with kprobes.attach(syscalls["waits"], **handlers) as probe:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        assert call(module, "waits", reader, ctypes.addressof(byte)) == 1
        assert (byte.raw, inside) == (b"x", [(False, 9 // 7 + 9 % 7)])
        assert (probe.nmissed, other.nmissed) == (0, 0)
    counted = {"native both": (2, 2), "python both": (1, 1), "c and native": (1, 2)}[kind]
    assert (seen[0], seen[1]) == counted
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()
    usr1 = ctypes.c_uint64(1 << signal.SIGUSR1 - 1)
    with kprobes.attach(syscalls["blocks"], **handlers):
        assert call(module, "blocks", signal.SIG_BLOCK, ctypes.addressof(usr1)) == 0
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == {signal.SIGUSR1}
        assert call(module, "blocks", signal.SIG_UNBLOCK, ctypes.addressof(usr1)) == 0
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()
    assert not kprobes.kprobe_running()
