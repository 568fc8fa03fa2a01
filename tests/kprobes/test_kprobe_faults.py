"""Faults of probed instructions and of handlers (KP-87, KP-88, KP-90)."""

from __future__ import annotations

import ctypes
import signal

import pytest
from instructions import boundaries
from isolation import TESTS, isolated, run_forked
from sampled import in_stress, sampled

import fprobe
import kprobes
import sandbox
from kprobes import checks, optimization
from sandbox.native import cast, i32, ptr, u64

PROGRAM = """
define i64 @peek(ptr %p) noinline { %r = load i64, ptr %p  %s = add i64 %r, 1  ret i64 %s }
define i64 @divide(i64 %a, i64 %b) noinline { %r = udiv i64 %a, %b  ret i64 %r }
"""
PF, DE = 14, 0
traps = []
told = fprobe.Array(u64, 4, shared=True)


@kprobes.native
def pre(p, regs):
    told[0] += 1


@kprobes.native
def post(p, regs, flags):
    told[1] += 1


@kprobes.native
def repair(p, regs, trapnr) -> i32:
    told[2] += 1
    told[3] = trapnr
    regs.di = regs.si
    return 1


@kprobes.native
def no_repair(p, regs, trapnr) -> i32:
    told[2] += 1
    return 0


@kprobes.native
def reads_what_is_not_there(p, regs) -> i32:
    told[0] += 1
    address = regs.si
    return cast(i32, cast(ptr[u64], address)[0])


@kprobes.native
def point_elsewhere(p, regs, trapnr) -> i32:
    """Lets the handler read the probe itself: any register may have held the bad address."""
    told[2] += 1
    told[3] = trapnr
    words = cast(ptr[u64], regs)
    for index in range(15):
        if words[index] == 8:
            words[index] = cast(u64, p)
    return 1


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
def repair_in_c(_p, regs, trapnr):
    ctypes.c_uint64.from_address(regs + 14 * 8).value = ctypes.c_uint64.from_address(regs + 13 * 8).value
    traps.append(trapnr)
    return 1


def load(preemptible):
    optimization.set_kprobes_optimization(0)
    checks.preemptible = preemptible
    return sandbox.load(PROGRAM, name="faulty")


def call(module, name, *arguments):
    """Directly, not through the guard that turns faults into exceptions."""
    return ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)(module.symbol(name).address)(*arguments)


def python_repair(p, regs, trapnr):
    traps.append(trapnr)
    regs.di = regs.si
    return 1


def python_no_repair(p, regs, trapnr=0):
    return 0


none = None


@isolated
@pytest.mark.parametrize("preemptible", sampled([True, False], 1))
@pytest.mark.parametrize("fault", ["repair", "repair_in_c", "python_repair"])
@pytest.mark.parametrize("stepped", [True, in_stress(False)])
def test_kp90_a_fault_of_the_instruction_is_handled(preemptible, fault, stepped):
    """The handler puts a good address into the register, and the instruction is executed again, with its pre_handler."""
    module = load(preemptible)
    good = ctypes.c_uint64(41)
    with kprobes.attach("peek+5", pre=pre, post=post if stepped else None, fault=globals()[fault]) as probe:
        assert call(module, "peek", 8, ctypes.addressof(good)) == 42
        assert told[0] == 2
        assert traps == [PF] or told[3] == PF
        assert not kprobes.kprobe_running()
        assert call(module, "peek", ctypes.addressof(good), 0) == 42
    assert probe.nmissed == 0
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()


@isolated
@pytest.mark.parametrize("fault", ["none", "no_repair", "python_no_repair"])
def test_kp87_a_fault_is_seen_where_the_instruction_was_probed(fault):
    """What nobody handles is reported with the probed address, and the probe can be hit again."""
    module = load(preemptible=True)
    address = module.symbol("peek").address + 5
    for post_handler in (None, post):
        with kprobes.attach(address, pre=pre, post=post_handler, fault=globals()[fault]):
            for _ in range(3):
                with pytest.raises(sandbox.SandboxFault) as caught:
                    module["peek"](8)
                assert caught.value.ip == address
                assert "peek+0x5" in str(caught.value)
            good = ctypes.c_uint64(1)
            assert call(module, "peek", ctypes.addressof(good), 0) == 2
    assert told[0] == 8
    assert not kprobes.kprobe_running()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()


@isolated(shared=True)
def test_kp90_the_number_of_the_trap():
    module = load(preemptible=True)

    def fault(p, regs, trapnr):
        traps.append(trapnr)
        regs.si = 2
        regs.cx = 2
        regs.r8 = 2
        return 1

    start, end = module.symbol("divide").address, module.symbol("divide").end
    places = [kprobes.kprobe(addr=at, fault_handler=fault) for at in boundaries(start, end)[1:]]
    kprobes.register_kprobes(places)
    assert call(module, "divide", 42, 0) == 21
    assert traps == [DE]
    kprobes.unregister_kprobes(places)


@isolated
def test_kp90_a_fault_in_a_handler_is_its_own():
    """nmissed counts it, for every child; registers are those of the fault."""
    module = load(preemptible=True)
    good = ctypes.c_uint64(41)
    other = kprobes.kprobe(symbol_name="peek", offset=5)
    kprobes.register_kprobe(other)
    with kprobes.attach("peek+5", pre=reads_what_is_not_there, fault=point_elsewhere) as probe:
        # The handler comes to read its own Child, whose first word is 0 here: the instruction is executed.
        ctypes.c_uint64.from_address(probe.p.native_address).value = 0
        assert call(module, "peek", ctypes.addressof(good), 8) == 42
        assert (told[0], told[2], told[3]) == (1, 1, PF)
        assert (probe.nmissed, other.nmissed) == (1, 1)
    kprobes.unregister_kprobe(other)


@isolated(shared=True)
def test_a_fault_in_a_native_handler_ends_the_guarded_call_and_nothing_else():
    """Signals are not left blocked, the context is normal, and no kprobe is running afterwards."""
    from sandbox.threads.contexts import current_context

    module = load(preemptible=True)
    good = ctypes.c_uint64(41)
    with kprobes.attach("divide+5", pre=reads_what_is_not_there):
        for _ in range(3):
            with pytest.raises(sandbox.SandboxFault):
                module["divide"](1, 8)
            assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()
            assert current_context() == "normal"
            assert not kprobes.kprobe_running()
    assert call(module, "peek", ctypes.addressof(good), 0) == 42


def test_kp87_faulthandler_shows_the_probed_address():
    source = """
import faulthandler, ctypes, sys
faulthandler.enable()
import sandbox, kprobes
from kprobes import optimization
optimization.set_kprobes_optimization(0)
module = sandbox.load("define i64 @peek(ptr %p) noinline { %r = load i64, ptr %p  ret i64 %r }", name="faulty")
kprobes.attach("peek+5", post=lambda p, regs, flags: 0).attach()
ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64)(module.symbol("peek").address)(8)
"""
    done = run_forked(source, 30)
    assert done.returncode == -signal.SIGSEGV, done.stderr
    assert "Segmentation fault" in done.stderr


BRANCHES = {
    "call_table": "mov %rdi, %rax; call *(%rax,%rsi,8); ret",
    "jump_table": "mov %rdi, %rax; jmp *(%rax,%rsi,8)",
    "far_below": "mov %rdi, %rax; call *-0x40(%rax); ret",
    "in_segment": "mov %rdi, %rax; jmp *%gs:(%rax)",
    "not_canonical": "movabs $0x8000000000000000, %rax; call *(%rax); ret",
    "calls_without_a_stack": "mov %rsp, %rdx; xchg %rdi, %rsp; call 1f; 1: mov %rdx, %rsp; ret",
    "calls_by_register": "mov %rsp, %rdx; lea 1f(%rip), %rax; xchg %rdi, %rsp; call *%rax; 1: mov %rdx, %rsp; ret",
    "returns_without_one": "mov %rsp, %rdx; xchg %rdi, %rsp; ret",
    "pushes_flags": "mov %rsp, %rdx; xchg %rdi, %rsp; pushfq; mov %rdx, %rsp; ret",
    "pops_flags": "mov %rsp, %rdx; xchg %rdi, %rsp; popfq; mov %rdx, %rsp; ret",
}
"""Each has one branch, or one use of the stack, that faults if it is given 8."""


def load_branches():
    text = []
    for name, code in BRANCHES.items():
        text += [f".globl {name}", f".type {name},@function", f"{name}:"]
        text += [part.strip() for part in code.split(";")] + [f".size {name}, .-{name}"]
    run = "define i64 @run(ptr %f, i64 %a, i64 %b) noinline { %r = call i64 %f(i64 %a, i64 %b)  ret i64 %r }"
    return sandbox.load("\n".join([*(f'module asm "{line}"' for line in [".text", *text]), run]), name="branches")


def stack_of(name):
    """Where the stack pointer of a function is to point that takes it from its argument: to the end of a mapping.

    The breakpoint's own frame fits there, and what the instruction wants is beyond. Above a push there is nothing beyond.
    """
    import mmap

    area = mmap.mmap(-1, 1 << 16)
    kept.append(area)
    base = ctypes.addressof(ctypes.c_char.from_buffer(area))
    libc = ctypes.CDLL(None)
    if name in ("returns_without_one", "pops_flags"):
        assert libc.mprotect(ctypes.c_void_p(base + (1 << 16) - 4096), 4096, 0) == 0
        return base + (1 << 16) - 4096
    assert libc.mprotect(ctypes.c_void_p(base + (1 << 16) - 8192), 4096, 1) == 0
    return base + (1 << 16) - 8192 + 64  # the frame begins below the red zone, on the page before


kept: list = []


WAYS = {
    "native": {"pre": pre},
    "with post": {"pre": pre, "post": post},
    "python": {"pre": python_no_repair},
    "optimized": {"pre": pre},
}


@isolated(shared=True)
@pytest.mark.parametrize("name", sampled(BRANCHES, 4))
def test_kp87_a_fault_of_an_emulated_instruction_is_its_own(name):
    """Branches through memory that is not there, and uses of a stack that is not: where, and what is accessed."""
    checks.preemptible = True
    module = load_branches()
    code = module.symbol(name).address
    with kprobes.attach("run"):  # from now on calls are guarded
        pass
    argument = stack_of(name) if "xchg" in BRANCHES[name] else 8

    def fault():
        with pytest.raises(sandbox.SandboxFault) as caught:
            module["run"](code, argument, 3)
        registers = caught.value.registers
        kept = registers["di"], registers["sp"] if argument != 8 else 8
        return caught.value.ip, caught.value.signal, caught.value.address, *kept

    expected = fault()
    for how, handlers in WAYS.items():
        optimization.set_kprobes_optimization(int(how == "optimized"))
        told.clear()
        with kprobes.attach(expected[0], **handlers) as probe:
            kprobes.wait_for_kprobe_optimizer()
            assert probe.p.place.optimized == (how == "optimized")
            for _ in range(2):
                found = fault()
                assert found == expected, (how, found, expected)
        assert (told[0], told[1]) == (0 if how == "python" else 2, 0), how
        assert not kprobes.kprobe_running()
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()


@kprobes.native
def bad_pre(p, regs) -> i32:
    return cast(i32, cast(ptr[u64], told[3] + 8)[0])


@kprobes.native
def bad_pre_with_regs(p, regs) -> i32:
    return cast(i32, cast(ptr[u64], regs.ip - regs.ip + 8)[0])


@kprobes.native
def bad_post(p, regs, flags):
    told[0] = cast(ptr[u64], told[3] + 8)[0]


@kprobes.native
def bad_return(ri, regs):
    told[0] = cast(ptr[u64], told[3] + 8)[0]


@kprobes.native
def bad_return_with_regs(ri, regs):
    regs.ax = cast(ptr[u64], told[3] + 8)[0]


CRASHES = [
    ("pre_handler", "bad_pre"),
    ("pre_handler", "bad_pre_with_regs"),
    ("post_handler", "bad_post"),
    ("fault_handler", "bad_fault"),
    ("entry_handler", "bad_pre"),
    ("entry_handler", "bad_pre_with_regs"),
    ("handler", "bad_return"),
    ("handler", "bad_return_with_regs"),
]


@kprobes.native
def bad_fault(p, regs, trapnr) -> i32:
    return cast(i32, cast(ptr[u64], told[3] + 8)[0])


def attached(role, handler, place):
    if role == "entry_handler":
        return kprobes.attach_return("peek", entry=handler)
    if role == "handler":
        return kprobes.attach_return("peek", handler)
    return kprobes.attach(place, **{role.removesuffix("_handler"): handler})


@isolated(shared=True)
@pytest.mark.parametrize("flavour", ["fentry", "none"])
@pytest.mark.parametrize("optimized", [0, 1])
def test_a_crash_of_a_handler_is_that_of_its_probe(flavour, optimized):
    """Which handler, of which probe: at stubs, breakpoints and jumps, alone and with others, on the signal's frame and off it."""
    module = sandbox.load(PROGRAM, name="faulty", flavour=flavour)
    optimization.set_kprobes_optimization(optimized)
    good = ctypes.c_uint64(41)
    start = module.symbol("peek").address
    first = 5 if flavour == "fentry" else 0
    for role, name in CRASHES:
        offset = {"fault_handler": first, "post_handler": first}.get(role, 0)
        for other in (None, count_returns, python_no_repair):
            with attached(role, globals()[name], start + offset):
                beside = kprobes.attach("peek", pre=other) if other is python_no_repair else None
                if other is count_returns:
                    beside = kprobes.attach_return("peek", count_returns)
                if beside is not None:
                    beside.attach()
                kprobes.wait_for_kprobe_optimizer()
                with pytest.raises(sandbox.SandboxFault) as caught:
                    module["peek"](8 if role == "fault_handler" else ctypes.addressof(good))
                kind = "kretprobe" if role in ("entry_handler", "handler") else "kprobe"
                expected = f"{role} {name} of the {kind} at peek+{offset:#x} [faulty]"
                assert (role, name, caught.value.handler) == (role, name, expected)
                assert str(caught.value).startswith(f"SIGSEGV in the {expected}, at {name}+")
                assert not kprobes.kprobe_running()
                assert (role, other, signal.pthread_sigmask(signal.SIG_BLOCK, [])) == (role, other, set())
                if beside is not None:
                    beside.detach()
    with pytest.raises(sandbox.SandboxFault) as caught:
        module["peek"](8)
    assert caught.value.handler == ""


@kprobes.native
def count_returns(ri, regs):
    told[1] += 1


@pytest.mark.parametrize(("role", "name"), sampled(CRASHES[::2] + CRASHES[3:4], 2))
def test_a_crash_that_ends_the_process_is_attributed_before(role, name):
    source = f"""
import sys
sys.path[:0] = {[str(TESTS), str(TESTS / "kprobes")]!r}
import test_kprobe_faults as t
module = t.sandbox.load(t.PROGRAM, name="faulty")
with t.attached({role!r}, t.{name}, "peek+5"):
    t.call(module, "peek", 8 if {role!r} == "fault_handler" else t.ctypes.addressof(t.ctypes.c_uint64(0)), 0)
"""
    done = run_forked(source, 30)
    assert done.returncode == -signal.SIGSEGV, done.stderr
    kind, offset = ("kretprobe", "0x0") if role in ("entry_handler", "handler") else ("kprobe", "0x5")
    expected = f"kprobes: SIGSEGV in the {role} {name} of the {kind} at peek+{offset} [faulty], accessing 0x"
    assert done.stderr.startswith(expected), done.stderr


@isolated
@pytest.mark.parametrize("optimized", [0, 1])
def test_kp90_a_python_fault_handler_is_asked_about_a_fault_in_a_handler(optimized):
    """Off the signal's frame, with the registers of the fault; what it does not handle is delivered there."""
    optimization.set_kprobes_optimization(optimized)
    module = sandbox.load(PROGRAM, name="faulty")
    good, seen = ctypes.c_uint64(41), []

    def fault(p, regs, trapnr):
        seen.append((trapnr, kprobes.kprobe_running()))
        if len(seen) > 3:
            return 0
        for name in ("ax", "bx", "cx", "dx", "si", "di", "r8", "r9", "r10", "r11"):
            if getattr(regs, name) == 8:
                setattr(regs, name, p.native_address)
        return 1

    with kprobes.attach("peek+5", pre=reads_what_is_not_there, fault=fault) as probe:
        kprobes.wait_for_kprobe_optimizer()
        ctypes.c_uint64.from_address(probe.p.native_address).value = 0
        for times in range(1, 4):
            assert call(module, "peek", ctypes.addressof(good), 8) == 42
            assert seen == [(PF, True)] * times
            assert probe.nmissed == times
        start = module.symbol("divide").address
        seen.clear()
        seen.extend([None] * 3)
        with kprobes.attach(start + 5, pre=reads_what_is_not_there, fault=fault):
            kprobes.wait_for_kprobe_optimizer()
            for times in range(1, 4):
                with pytest.raises(sandbox.SandboxFault) as caught:
                    module["divide"](1, 8)
                assert "reads_what_is_not_there" in caught.value.handler
                assert (caught.value.address, len(seen)) == (8, 3 + times)
                assert not kprobes.kprobe_running()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()
