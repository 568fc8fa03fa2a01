"""Jump optimisation: when a probe is one, what a hit does then, and how it goes back (KP-60..73)."""

from __future__ import annotations

import ctypes
import errno
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import kprobe_targets
import pytest
import raw_masks
from isolation import isolated
from sampled import sampled

import fprobe
import kprobes
from sandbox.native import u64

UD2 = b"\x0f\x0b"


def first_bytes(address: int, size: int) -> bytes:
    return ctypes.string_at(address, size)


def setup(name: str = "stack"):
    """A module, the addresses of one of its functions' probeable instructions, and how to call that."""
    from instructions import boundaries

    from sandbox.images.process_text import symbol_named

    module = kprobe_targets.load()
    symbol = symbol_named(f"{module.name}:{name}")
    starts = [at for at in boundaries(symbol.address, symbol.end) if first_bytes(at, 2) != UD2]
    return module, starts, lambda a, b: kprobe_targets.call(module, name, a, b)


def block_sigtrap() -> Callable[[], None]:
    """There is a thread that blocks SIGTRAP, until the function that is returned is called."""
    ready, done = threading.Event(), threading.Event()

    def blocking():
        raw_masks.block_sigtrap()
        ready.set()
        done.wait()

    def unblock():
        done.set()
        thread.join()

    thread = threading.Thread(target=blocking, name="blocker")
    thread.start()
    ready.wait()
    return unblock


def probe(address: int, pre: object = None, **options: object):

    p = kprobes.kprobe(addr=address, pre_handler=pre, **options)
    kprobes.register_kprobe(p)
    return p


def is_jump(address: int) -> bool:
    """Whether what is there, behind redundant prefixes, is a jump."""
    code = ctypes.string_at(address, 8).lstrip(b"\x2e")
    return code[0] == 0xE9


def first_byte(address: int) -> int:
    return ctypes.string_at(address, 1)[0]


@isolated
def test_a_probe_is_marked_at_once_and_becomes_a_jump_later():
    """KP-64, KP-65; what it calls meanwhile goes on in the copy (KP-37)"""
    from kprobes.jump import worker

    worker.DELAY = 60
    _, starts, call = setup()
    seen = []
    p = probe(starts[2], lambda _p, regs: seen.append(regs.ip))
    assert p.place.optimized
    assert first_byte(starts[2]) == 0xCC
    assert call(3, 4) == 7
    kprobes.wait_for_kprobe_optimizer()
    assert is_jump(starts[2])
    assert call(3, 4) == 7
    assert seen == [starts[2] + 1] * 2


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def _eventually(condition: Callable[[], object]) -> bool:
    deadline = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(condition())


@isolated
def test_the_optimizer_runs_by_itself():
    """KP-65: a while after the first kick"""
    _, starts, call = setup()
    p = probe(starts[2])
    assert _eventually(lambda: is_jump(starts[2]))
    assert p.place.covered
    assert call(1, 2) == 3


@isolated
def test_the_optimisers_thread_ends_when_nothing_is_queued_and_a_later_probe_has_another():
    """A program that forks is warned of other threads."""
    _module, starts, _call = setup()
    alone = _threads()
    for start in starts[1:3]:
        p = probe(start)
        assert _eventually(lambda p=p: p.place.covered)
        assert _eventually(lambda: _threads() == alone)
        kprobes.unregister_kprobe(p)


@isolated
@pytest.mark.parametrize("extent", sampled(["alone", "dense"], 1))
def test_the_text_comes_back(extent):
    """KP-71; in any order, with probes on neighbours"""
    from kprobes import Extent, set_extent

    _, starts, call = setup("branches")
    original = ctypes.string_at(starts[0], starts[-1] + 1 - starts[0])
    expected = {args: call(*args) for args in kprobe_targets.ARGUMENTS}
    set_extent(Extent(extent))
    rng = random.Random(5)
    probes = [kprobes.kprobe(addr=at) for at in starts]
    for _ in range(40):
        for p in rng.sample(probes, 5):
            if p.registered:
                kprobes.unregister_kprobe(p)
            else:
                p.flags = 0
                kprobes.register_kprobe(p)
            if rng.random() < 0.5:
                kprobes.wait_for_kprobe_optimizer()
        assert {args: call(*args) for args in kprobe_targets.ARGUMENTS} == expected
    kprobes.unregister_kprobes(probes)
    kprobes.wait_for_kprobe_optimizer()
    assert ctypes.string_at(starts[0], len(original)) == original


@isolated
def test_the_return_value_and_ip_are_ignored_registers_are_not():
    """KP-67"""

    _, starts, call = setup()

    def pre(p, regs):
        regs.di += 100
        regs.ip += 2
        regs.sp -= 8
        return 1

    probe(starts[2], pre)
    kprobes.wait_for_kprobe_optimizer()
    assert call(3, 4) == 107


@isolated
def test_flags_that_a_handler_sets_are_taken():
    """KP-67; and those it does not touch are kept, in all their combinations"""

    _, starts, call = setup("branches")
    results = {args: call(*args) for args in kprobe_targets.ARGUMENTS}
    probes = [probe(at, lambda _p, _regs: 0) for at in starts[1:]]
    kprobes.wait_for_kprobe_optimizer()
    assert sum(p.place.optimized for p in probes) > 0
    assert {args: call(*args) for args in results} == results
    kprobes.unregister_kprobes(probes)

    def overflow(p, regs):
        regs.flags |= 1 << 11

    without = call(0, 0)
    jo = next(at for at in starts if first_byte(at) == 0x70)
    p = probe(jo, overflow)
    kprobes.wait_for_kprobe_optimizer()
    assert p.place.optimized
    assert call(0, 0) != without


@isolated
def test_all_children_are_called():
    """KP-68: newest first, whatever they return; a changed ip is seen by the next and means nothing in the end"""

    _, starts, call = setup()
    seen = []

    def handler(name):
        def pre(p, regs):
            seen.append((name, regs.ip - starts[2]))
            regs.ip += 1
            return 1

        return pre

    probes = [probe(starts[2], handler(name)) for name in "abc"]
    kprobes.wait_for_kprobe_optimizer()
    kprobes.disable_kprobe(probes[1])
    assert call(3, 4) == 7
    assert is_jump(starts[2])
    assert seen == [("c", 1), ("a", 2)]


@isolated
def test_kp4_handlers_cannot_be_preempted_behind_a_jump_either():
    """KP-42: nor can whoever says that a kprobe is running"""
    import sandbox
    from sandbox.threads.contexts import current_context, preemptible

    _, starts, call = setup()
    module = sandbox.load("define i64 @third(i64 %n) noinline { %r = udiv i64 %n, 3  ret i64 %r }", flavour="none")
    seen = []

    def handler(*hit):
        seen.append((current_context(), preemptible()))

    probe(starts[2], pre=handler)
    returning = kprobes.kretprobe(symbol_name="third", entry_handler=handler, handler=handler)
    kprobes.register_kretprobe(returning)
    kprobes.wait_for_kprobe_optimizer()
    assert is_jump(starts[2]) and is_jump(returning.kp.addr)
    assert call(3, 4) == 7 and module["third"](9) == 3
    assert seen == [("normal", False)] * 3, seen
    assert preemptible()
    kprobes.kprobe_busy_begin()
    assert not preemptible()
    kprobes.kprobe_busy_end()


@isolated
def test_a_hit_while_a_kprobe_runs_is_missed():
    """KP-72: counted for every child, the disabled ones too"""

    _, starts, call = setup()
    probes = [probe(starts[2]), probe(starts[2])]
    kprobes.wait_for_kprobe_optimizer()
    kprobes.disable_kprobe(probes[1])
    kprobes.kprobe_busy_begin()
    assert call(3, 4) == 7
    kprobes.kprobe_busy_end()
    assert [p.nmissed for p in probes] == [1, 1]
    assert is_jump(starts[2])


@isolated
def test_a_post_handler_is_against_it():
    """KP-48, KP-63, KP-69: immediately; it comes back with the handler's end"""

    _, starts, call = setup()
    p = probe(starts[2])
    kprobes.wait_for_kprobe_optimizer()
    seen = []
    other = probe(starts[2], post_handler=lambda _p, regs, _flags: seen.append(regs.ip))
    assert not p.place.optimized
    assert first_byte(starts[2]) == 0xCC
    assert call(3, 4) == 7
    assert seen == [starts[3]]
    kprobes.unregister_kprobe(other)
    kprobes.wait_for_kprobe_optimizer()
    assert is_jump(starts[2])


@isolated
def test_an_enabled_probe_among_the_borrowed_bytes_is_against_it():
    """KP-63, KP-69; a disabled one is not. Hazard: the detour has copies of what it borrows, where the other is not hit"""

    _, starts, call = setup()
    p, seen = probe(starts[2]), []
    near = probe(starts[3], lambda _p, _regs: seen.append(1), flags=kprobes.KPROBE_FLAG_DISABLED)
    kprobes.wait_for_kprobe_optimizer()
    assert is_jump(starts[2])
    kprobes.enable_kprobe(near)
    assert not p.place.optimized
    assert [first_byte(at) for at in starts[2:4]] == [0xCC, 0xCC]
    assert call(3, 4) == 7
    kprobes.wait_for_kprobe_optimizer()
    assert not p.place.optimized
    assert seen == [1]
    kprobes.unregister_kprobe(near)
    kprobes.set_kprobes_optimization(0)
    kprobes.set_kprobes_optimization(1)
    kprobes.wait_for_kprobe_optimizer()
    assert is_jump(starts[2])


@isolated
def test_the_last_to_leave_leaves_the_jump_for_a_while():
    """KP-69, KP-70: un-optimised later; who comes back before finds the jump and has no trap"""
    from kprobes.jump import worker

    _, starts, call = setup()
    worker.DELAY = 60
    seen = []
    p = probe(starts[2], lambda _p, _regs: seen.append(1))
    kprobes.wait_for_kprobe_optimizer()
    kprobes.disable_kprobe(p)
    assert is_jump(starts[2])
    assert call(3, 4) == 7
    assert seen == []
    kprobes.enable_kprobe(p)
    assert is_jump(starts[2])
    assert p.place.optimized
    assert call(3, 4) == 7
    assert seen == [1]
    kprobes.disable_kprobe(p)
    kprobes.wait_for_kprobe_optimizer()
    assert not is_jump(starts[2])
    assert first_byte(starts[2]) != 0xCC


@pytest.mark.parametrize("returns", [False, True])
@isolated
def test_the_text_is_as_it_was_when_unregistering_returns(returns):
    """The optimiser is not waited for, and what is left of its work is nothing."""
    from kprobes import states
    from kprobes.jump import worker

    _, starts, call = setup()
    worker.DELAY = 60
    original = first_bytes(starts[0], 16)
    p = kprobes.kretprobe(addr=starts[0]) if returns else kprobes.kprobe(addr=starts[0])
    (kprobes.register_kretprobe if returns else kprobes.register_kprobe)(p)
    kprobes.wait_for_kprobe_optimizer()
    assert is_jump(starts[0])
    (kprobes.unregister_kretprobe if returns else kprobes.unregister_kprobe)(p)
    assert first_bytes(starts[0], 16) == original
    assert not states.is_pending()
    assert call(3, 4) == 7


@pytest.mark.parametrize("extent", sampled(["alone", "dense"], 1))
@isolated
def test_the_text_is_as_it_was_when_unregistering_a_batch_returns(extent):
    """Two at one place; a third probe, which is not of the batch, stays a jump or becomes one again."""
    from kprobes import Extent, set_extent
    from kprobes.jump import worker

    _, starts, call = setup("branches")
    worker.DELAY = 60
    set_extent(Extent(extent))
    original = first_bytes(starts[0], starts[-1] + 1 - starts[0])
    expected = {args: call(*args) for args in kprobe_targets.ARGUMENTS}
    stays = probe(starts[0])
    batch = [probe(at) for at in (*starts[1:], starts[3], starts[-2])]
    kprobes.wait_for_kprobe_optimizer()
    assert any(p.place.covered for p in batch)
    kprobes.unregister_kprobes(batch)
    behind = starts[0] + 5
    assert first_bytes(behind, len(original) - 5) == original[5:]
    assert {args: call(*args) for args in expected} == expected
    kprobes.unregister_kprobe(stays)
    assert first_bytes(starts[0], len(original)) == original


@isolated
def test_a_jump_that_cannot_be_taken_back_at_once_is_taken_back_later():
    """HAZARDS: a thread blocks SIGTRAP; the probe leaves all the same."""
    _, starts, call = setup()
    seen = []
    p = probe(starts[2], lambda _p, _regs: seen.append(1))
    kprobes.wait_for_kprobe_optimizer()
    unblock = block_sigtrap()
    kprobes.unregister_kprobe(p)
    assert is_jump(starts[2])
    assert call(3, 4) == 7
    assert seen == []
    unblock()
    deadline = time.monotonic() + 30
    while is_jump(starts[2]) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_jump(starts[2])
    assert call(3, 4) == 7


@isolated
def test_a_jump_that_could_not_go_when_all_were_disarmed_goes_later():
    """KP-59; HAZARDS: a thread blocks SIGTRAP"""
    _, starts, call = setup()
    p = probe(starts[2])
    kprobes.wait_for_kprobe_optimizer()
    unblock = block_sigtrap()
    with pytest.raises(OSError, match="SIGTRAP is blocked in"):
        kprobes.set_kprobes_enabled(False)
    kprobes.unregister_kprobe(p)
    assert is_jump(starts[2])
    assert call(3, 4) == 7
    unblock()
    kprobes.wait_for_kprobe_optimizer()
    assert not is_jump(starts[2])
    assert call(3, 4) == 7


@isolated
def test_a_jump_where_a_debugger_has_written():
    """HAZARDS 7: its page is a copy, which the writable view does not reach."""
    from sandbox.memory.mappings import write_through_kernel

    _, starts, call = setup()
    original = first_bytes(starts[2], 16)
    write_through_kernel(starts[2], original[:1])
    seen = []
    p = probe(starts[2], lambda _p, _regs: seen.append(1))
    kprobes.wait_for_kprobe_optimizer()
    assert is_jump(starts[2])
    assert call(3, 4) == 7
    kprobes.unregister_kprobe(p)
    assert first_bytes(starts[2], 16) == original
    assert call(3, 4) == 7
    assert seen == [1]


@isolated
def test_the_sysctl():
    """KP-73"""

    _, starts, call = setup()
    p = probe(starts[2])
    kprobes.wait_for_kprobe_optimizer()
    assert kprobes.kprobes_optimization() == 1
    for bad in (2, -1):
        with pytest.raises(OSError, match="0 or 1") as refused:
            kprobes.set_kprobes_optimization(bad)
        assert refused.value.errno == errno.EINVAL
    kprobes.set_kprobes_optimization(0)
    assert not p.place.optimized
    assert first_byte(starts[2]) == 0xCC
    other = probe(starts[-2])
    kprobes.wait_for_kprobe_optimizer()
    assert not other.place.optimized
    assert call(3, 4) == 7
    kprobes.set_kprobes_optimization(1)
    assert p.place.optimized
    kprobes.wait_for_kprobe_optimizer()
    assert is_jump(starts[2])


@isolated
def test_the_global_switch():
    """KP-59"""

    _, starts, call = setup()
    p = probe(starts[2])
    kprobes.wait_for_kprobe_optimizer()
    kprobes.set_kprobes_enabled(False)
    assert ctypes.string_at(starts[2], 1) == p.opcode.to_bytes(1, "little")
    assert call(3, 4) == 7
    kprobes.set_kprobes_enabled(True)
    kprobes.wait_for_kprobe_optimizer()
    assert is_jump(starts[2])


@isolated
def test_the_red_zone_vectors_and_flags_are_kept():
    """KP-66, section P: with a Python handler, with one that looks at registers, and with one that does not"""

    @kprobes.native
    def plain(p, regs):
        pass

    @kprobes.native
    def looking(p, regs):
        regs.orig_ax = regs.ax

    def python(p, regs):
        return 0

    for name in kprobe_targets.FUNCTIONS:
        _, starts, call = setup(name)
        expected = [call(a, b) for a, b in kprobe_targets.ARGUMENTS]
        for handler in (plain, looking, python):
            for at in starts:
                p = kprobes.kprobe(addr=at, pre_handler=handler)
                try:
                    kprobes.register_kprobe(p)
                except OSError:
                    continue
                kprobes.wait_for_kprobe_optimizer()
                found = [call(a, b) for a, b in kprobe_targets.ARGUMENTS]
                assert found == expected, (name, p.place.insn.text, handler)
                kprobes.unregister_kprobe(p)
                kprobes.wait_for_kprobe_optimizer()


@pytest.mark.stress
@isolated(timeout=60)
def test_jumps_come_and_go_under_threads():
    """KP-65, KP-71: two threads in the code, probes on all instructions at random, neighbours' bytes borrowed"""
    from kprobes import Extent, set_extent

    @kprobes.native
    def plain(p, regs):
        pass

    _, starts, call = setup("branches")
    expected = {args: call(*args) for args in kprobe_targets.ARGUMENTS}
    stop, wrong = threading.Event(), []

    def run():
        while not stop.is_set():
            for args, result in expected.items():
                if call(*args) != result:
                    wrong.append(args)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    set_extent(Extent.DENSE)
    rng = random.Random(1)
    probes = [kprobes.kprobe(addr=at, pre_handler=plain) for at in starts]
    for _ in range(500):
        p = rng.choice(probes)
        if p.registered:
            kprobes.unregister_kprobe(p)
        else:
            p.flags = 0
            kprobes.register_kprobe(p)
        if rng.random() < 0.3:
            kprobes.wait_for_kprobe_optimizer()
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


@isolated(cold=True)  # the bytes after it leave the jump few places to land, which others may have taken
def test_a_fault_in_a_detour_is_seen_where_it_was_probed():
    """Section P: KP-87 for optimised copies"""
    from instructions import boundaries

    import sandbox
    from sandbox.threads.faults import SandboxFault

    module = sandbox.load("define i64 @peek(ptr %p) { %r = load i64, ptr %p  ret i64 %r }", name="peeking")
    symbol = module.symbol("peek")
    address = boundaries(symbol.address, symbol.end)[1]
    probe(address)
    kprobes.wait_for_kprobe_optimizer()
    assert is_jump(address)
    with pytest.raises(SandboxFault) as fault:
        module["peek"](8)
    assert fault.value.ip == address
    assert fault.value.address == 8


@isolated
def test_every_refusal_names_its_rule():
    """KP-61: reported, for us and for the kernel's rules"""
    from kprobes import Extent, set_extent, why_not

    _, starts, _ = setup("indirect")
    set_extent(Extent.KERNEL)
    p = probe(starts[0])
    kprobes.wait_for_kprobe_optimizer()
    assert not p.place.optimized
    refusal = why_not(starts[0])
    assert refusal is not None
    assert refusal.rule == "indirect jump"
    assert f"{starts[3]:#x}" in refusal.reason


@isolated
def test_a_forked_child_has_jumps_of_its_own():
    """Landings, detours and text are the child's; so is the optimiser's thread"""

    _, starts, call = setup()
    seen = []
    probes = [probe(at, lambda _p, regs: seen.append(regs.ip)) for at in (starts[1], starts[6])]
    kprobes.wait_for_kprobe_optimizer()
    assert is_jump(starts[1])
    assert is_jump(starts[6])
    child = os.fork()
    if not child:
        good = call(3, 4) == 7 and len(seen) == 2
        kprobes.unregister_kprobe(probes[0])
        deadline = time.monotonic() + 30
        while probes[0].registered or is_jump(starts[1]):
            good = good and time.monotonic() < deadline
            if not good:
                break
            time.sleep(0.01)
        os._exit(0 if good and call(3, 4) == 7 and len(seen) == 3 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert is_jump(starts[1])
    assert call(3, 4) == 7
    assert len(seen) == 2


@isolated
def test_a_thread_that_blocks_sigtrap_is_named():
    """HAZARDS: breakpoints are needed to take a jump back"""
    _, starts, call = setup()
    probe(starts[2])
    kprobes.wait_for_kprobe_optimizer()
    unblock = block_sigtrap()
    with pytest.raises(OSError, match="SIGTRAP is blocked in") as refused:
        kprobes.set_kprobes_optimization(0)
    assert refused.value.errno == errno.EBUSY
    assert is_jump(starts[2])
    unblock()
    kprobes.set_kprobes_optimization(0)
    assert not is_jump(starts[2])
    assert call(3, 4) == 7


@isolated
def test_a_jump_that_was_there_before_the_first_kretprobe_is_made_anew():
    """HAZARDS 10: its detour leads nobody to the return stub."""
    from kprobes.jump import worker

    worker.DELAY = 60  # no jump by itself before the breakpoint has been seen
    _, starts, call = setup()
    seen = []
    p = probe(starts[0], lambda _p, _regs: seen.append("kprobe"))
    kprobes.wait_for_kprobe_optimizer()
    rp = kprobes.kretprobe(addr=starts[0], handler=lambda _ri, _regs: seen.append("return"))
    kprobes.register_kretprobe(rp)
    assert first_byte(starts[0]) == 0xCC
    kprobes.wait_for_kprobe_optimizer()
    assert p.place.covered and not p.place.jump.is_outdated
    assert call(3, 4) == 7
    assert seen == ["kprobe", "return"]


@isolated
def test_a_jump_that_cannot_be_taken_back_serves_the_first_kretprobe_too():
    """While a thread blocks SIGTRAP the return slot is overwritten, as at a breakpoint."""
    _, starts, call = setup()
    p = probe(starts[0], lambda _p, _regs: 0)
    kprobes.wait_for_kprobe_optimizer()
    unblock, seen = block_sigtrap(), []
    rp = kprobes.kretprobe(addr=starts[0], handler=lambda _ri, regs: seen.append(regs.ax))
    kprobes.register_kretprobe(rp)
    assert p.place.covered
    assert call(3, 4) == 7
    assert seen == [7]
    unblock()
    kprobes.unregister_kprobe(p)
    kprobes.wait_for_kprobe_optimizer()
    assert call(3, 4) == 7
    assert seen == [7, 7]


@isolated
def test_returns_are_hooked_through_a_jump():
    """KP-78, KP-79: with Python handlers and with native ones that look at registers; recursion, results, misses"""
    import sandbox

    source = """define i64 @fact(i64 %n) noinline {
entry: %end = icmp ule i64 %n, 1  br i1 %end, label %one, label %more
one: ret i64 1
more: %less = sub i64 %n, 1  %rest = call i64 @fact(i64 %less)  %r = mul i64 %n, %rest  ret i64 %r }"""
    module = sandbox.load(source, name="returning", flavour="none")
    seen = []

    @kprobes.native
    def doubled(ri, regs):
        regs.ax = regs.ax * 2

    python = kprobes.kretprobe(
        symbol_name="returning:fact", maxactive=10, handler=lambda _ri, regs: seen.append(regs.ax),
        entry_handler=lambda _ri, regs: seen.append(-regs.di),
    )  # fmt: skip
    kprobes.register_kretprobe(python)
    kprobes.wait_for_kprobe_optimizer()
    assert is_jump(python.kp.addr)
    assert module["fact"](4) == 24
    assert seen == [-4, -3, -2, -1, 1, 2, 6, 24]
    native = kprobes.kretprobe(symbol_name="returning:fact", maxactive=10, handler=doubled)
    kprobes.register_kretprobe(native)
    kprobes.unregister_kretprobe(python)
    kprobes.wait_for_kprobe_optimizer()
    assert is_jump(native.kp.addr)
    assert module["fact"](4) == 24 * 2**4
    assert module["fact"](20) & 0xFFFF == 2432902008176640000 * 2**10 & 0xFFFF
    assert native.nmissed == 10
    kprobes.unregister_kretprobe(native)
    kprobes.wait_for_kprobe_optimizer()
    assert module["fact"](4) == 24


@isolated
def test_a_probe_beside_a_return_probe_sees_flags_and_registers():
    """The detour of an entry with return probes does without the flags, and with the rest"""
    import sandbox

    module = sandbox.load(
        "define i64 @f(i64 %x) noinline { %r = add i64 %x, 5  ret i64 %r }", name="both", flavour="none"
    )
    returns, entries = [], []

    def pre(_p, regs):
        entries.append(regs.di)
        regs.di += 100

    rp = kprobes.kretprobe(symbol_name="both:f", handler=lambda _ri, regs: returns.append(regs.ax))
    kprobes.register_kretprobe(rp)
    p = kprobes.kprobe(symbol_name="both:f", pre_handler=pre)
    kprobes.register_kprobe(p)
    kprobes.wait_for_kprobe_optimizer()
    assert is_jump(p.addr)
    assert module["f"](1) == 106
    kprobes.disable_kretprobe(rp)
    assert module["f"](1) == 106
    assert (entries, returns) == ([1, 1], [106])


plain_hits = fprobe.Array(u64, 1, shared=True)


@kprobes.native
def count_plain(p, regs):
    plain_hits[0] += 1


@isolated
def test_a_place_that_had_a_return_probe_is_as_quick_as_any_other():
    """Its detour still looks whether the return is hooked, and calls the routine for a lone plain handler."""
    import sandbox
    from kprobes.hit.runtime import kprobe_runtime

    module = sandbox.load(
        "define i64 @f(i64 %x) noinline { %r = add i64 %x, 5  ret i64 %r }", name="both", flavour="none"
    )
    with kprobes.attach_return("f", lambda _ri, _regs: plain_hits.clear()):
        kprobes.wait_for_kprobe_optimizer()
        assert module["f"](1) == 6
    with kprobes.attach("f", pre=count_plain) as attached:
        kprobes.wait_for_kprobe_optimizer()
        assert is_jump(attached.p.addr)
        (detour,) = attached.p.place.jump.detours
        routine = ctypes.c_uint64.from_address(detour.address).value
        assert routine == kprobe_runtime().image.address("kprobe_optimized_plain_return")
        assert [module["f"](x) for x in range(100)] == list(range(5, 105))
        assert plain_hits[0] == 100
        rp = kprobes.kretprobe(symbol_name="f", handler=lambda _ri, regs: setattr(regs, "ax", regs.ax + 1))
        kprobes.register_kretprobe(rp)
        assert [module["f"](x) for x in range(100)] == list(range(6, 106))
        kprobes.unregister_kretprobe(rp)
        assert [module["f"](x) for x in range(100)] == list(range(5, 105))
        assert plain_hits[0] == 300
        kprobes.kprobe_busy_begin()
        assert module["f"](1) == 6
        kprobes.kprobe_busy_end()
        assert (plain_hits[0], attached.nmissed) == (300, 1)


@isolated
def test_a_module_that_goes_takes_its_jumps_along():
    """KP-95: also those that were to be taken back later; the memory is given back"""
    from kprobes.jump import worker
    from kprobes.jump.optinsns import caches
    from sandbox.memory import mappings as memory

    before = len(memory.mappings())
    for _ in range(3):
        module, starts, call = setup()
        worker.DELAY = 60
        probes = [kprobes.kprobe(addr=at) for at in (starts[1], starts[6])]
        kprobes.register_kprobes(probes)
        kprobes.wait_for_kprobe_optimizer()
        assert all(p.place.covered for p in probes)
        kprobes.unregister_kprobe(probes[0])
        assert call(3, 4) == 7
        module.unload()
        assert not caches()
        kprobes.unregister_kprobe(probes[1])
    assert len(memory.mappings()) < before + 60
