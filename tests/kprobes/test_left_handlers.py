"""Handlers that are left by longjmp: no kprobe is running any more, and none is missed for it (KP-42, KP-46; HAZARDS 1)."""

from __future__ import annotations

import ctypes
import signal

import pytest
from isolation import isolated
from sampled import in_stress, sampled

import fprobe
import kprobes
import sandbox
from kprobes import checks, optimization
from sandbox.native import cast, i32, ptr, u64
from sandbox.threads import contexts
from sandbox.threads.contexts import current_context, preemptible

PROGRAM = """
declare i32 @__sigsetjmp(ptr, i32) returns_twice
declare void @siglongjmp(ptr, i32) noreturn
@buffer = global [64 x i64] zeroinitializer, align 16
@leaving = global i64 0
@calls = global i64 0
define i64 @leaf(i64 %x) noinline { %r = add i64 %x, 1  %s = mul i64 %r, 2  ret i64 %s }
define i64 @deeper(i64 %x) noinline { %room = alloca [512 x i64]  store volatile i64 %x, ptr %room
  call void asm sideeffect "", "r"(ptr %room)  %r = call i64 @leaf(i64 %x)  store volatile i64 %r, ptr %room  ret i64 %r }
define i64 @around(i64 %x) noinline {
  %r = call i32 @__sigsetjmp(ptr @buffer, i32 1) returns_twice
  %first = icmp eq i32 %r, 0
  br i1 %first, label %go, label %left
go:
  %s = call i64 @deeper(i64 %x)
  ret i64 %s
left:
  ret i64 7
}
define i32 @handler(ptr %p, ptr %regs) "notrace" {
  %flag = load volatile i64, ptr @leaving
  %stay = icmp eq i64 %flag, 0
  br i1 %stay, label %done, label %leave
leave:
  call void @siglongjmp(ptr @buffer, i32 1)
  unreachable
done:
  %n = load volatile i64, ptr @calls
  %m = add i64 %n, 1
  store volatile i64 %m, ptr @calls
  ret i32 0
}
define void @let_leave(i64 %flag) "notrace" { store volatile i64 %flag, ptr @leaving  ret void }
define i64 @counted() "notrace" { %n = load volatile i64, ptr @calls  ret i64 %n }
define void @on_fault(i32 %number) "notrace" { call void @siglongjmp(ptr @buffer, i32 1)  unreachable }
"""
KINDS = ("int3", "jump")
calls = fprobe.Array(u64, 2, shared=True)


@kprobes.native
def faults(p, regs) -> i32:
    """Plain: it does not look at the registers."""
    calls[0] += 1
    where = cast(ptr[u64], p)[0]
    return cast(i32, cast(ptr[u64], where)[0])


@kprobes.native
def faults_with_regs(p, regs) -> i32:
    if regs.ip != 0:
        calls[0] += 1
    where = cast(ptr[u64], p)[0]
    return cast(i32, cast(ptr[u64], where)[0])


@kprobes.native
def counts(p, regs):
    calls[1] += 1


@kprobes.native
def counts_with_regs(p, regs):
    calls[1] += regs.ip - regs.ip + 1


@kprobes.native
def returns(ri, regs):
    calls[1] += 1


def load(kind: str, flavour: str = "none") -> tuple[object, object]:
    checks.preemptible = True
    optimization.set_kprobes_optimization(int(kind == "jump"))
    module = sandbox.load(PROGRAM, name="leaving", flavour=flavour)
    around = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64)(module.symbol("around").address)
    return module, around


def check_normal(abandoned: int) -> None:
    """What a hit has for its time is gone, and the mark of being inside with it."""
    assert kprobes.kprobes_abandoned() == abandoned
    assert not kprobes.kprobe_running()
    assert (current_context(), preemptible()) == ("normal", True)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()


@isolated
@pytest.mark.parametrize("kind", sampled(KINDS, 1))
@pytest.mark.parametrize("role", ["pre", "post", "entry", "return"])
def test_a_c_handler_that_does_not_come_back(kind, role):
    if (kind, role) == ("jump", "post"):
        kind = "int3"
    module, around = load(kind)
    in_c = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(module.symbol("handler").address)
    if role in ("pre", "post"):
        probe = kprobes.attach("leaf", **{role: in_c})
    else:
        probe = kprobes.attach_return("leaf", **{"entry" if role == "entry" else "handler": in_c})
    with probe:
        kprobes.wait_for_kprobe_optimizer()
        assert around(4) == 10
        assert module["counted"]() == 1
        for times in range(1, 4):
            module["let_leave"](1)
            assert around(4) == 7
            module["let_leave"](0)
            assert around(4) == 10
            assert module["counted"]() == 1 + times
        check_normal(3)
        if role != "return":
            assert contexts.installed.task().rec == 0
    assert probe.nmissed == 0
    assert around(4) == 10


@isolated
@pytest.mark.parametrize("kind", sampled(KINDS, 1))
@pytest.mark.parametrize("handler", ["faults", "faults_with_regs"])
def test_a_native_handler_that_a_signal_handler_jumps_out_of(kind, handler):
    """It faults, and the program's own handler of SIGSEGV goes elsewhere."""
    module, around = load(kind)
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    libc.signal(signal.SIGSEGV, module.symbol("on_fault").address)
    good = ctypes.c_uint64(0)
    with kprobes.attach("leaf", pre=globals()[handler]) as probe:
        kprobes.wait_for_kprobe_optimizer()
        where = ctypes.c_uint64.from_address(probe.p.native_address)  # Child.address, which these handlers read from
        for times in range(1, 4):
            where.value = 8
            assert around(4) == 7
            where.value = ctypes.addressof(good)
            assert around(4) == 10
            assert calls[0] == 2 * times
        check_normal(3)
    assert probe.nmissed == 0


@isolated
@pytest.mark.parametrize("other", ["counts", in_stress("counts_with_regs"), in_stress("returns")])
def test_the_next_hit_is_that_of_another_probe_at_a_stub(other):
    module, around = load("int3", "fentry")
    in_c = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(module.symbol("handler").address)
    handler = globals()[other]
    attached = kprobes.attach_return("deeper", handler) if other == "returns" else kprobes.attach("deeper", pre=handler)
    with kprobes.attach("leaf+5", pre=in_c), attached as probe:
        assert around(4) == 10
        for times in range(1, 4):
            module["let_leave"](1)
            assert around(4) == 7
            module["let_leave"](0)
            assert around(4) == 10
            assert calls[1] == 1 + times * (1 if other == "returns" else 2)
        assert kprobes.kprobes_abandoned() == 3
    assert probe.nmissed == 0


@isolated(shared=True)
def test_a_hit_inside_a_running_handler_is_still_missed():
    """Below it on the same stack, and on a signal stack."""
    _module, around = load("int3")
    results = []

    def pre(p, regs):
        results.append(around(1))
        signal.raise_signal(signal.SIGUSR1)

    on_signal = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda _number: results.append(around(2)))
    install_on_stack(on_signal)
    with kprobes.attach("leaf+5", pre=pre) as probe:
        assert around(4) == 10
    assert results == [4, 6]
    assert probe.nmissed == 2
    check_normal(0)


def install_on_stack(handler) -> None:
    """A handler of SIGUSR1 on an alternate stack, which faulthandler has made."""
    action = (ctypes.c_uint64 * 19)()
    action[0] = ctypes.cast(handler, ctypes.c_void_p).value
    action[17] = 0x0800_0000  # SA_ONSTACK
    assert ctypes.CDLL(None).sigaction(signal.SIGUSR1, ctypes.byref(action), None) == 0
