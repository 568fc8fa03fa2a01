"""Hazard: behind a probe in code that was not compiled here no register and no flag is free, on neither side of a call."""

from __future__ import annotations

from collections.abc import Callable

import full_registers
import pytest
from isolation import isolated
from sampled import in_stress, sampled

import fprobe
import kprobes
from sandbox.native import i32, u64

counted = fprobe.Array(u64, 4, shared=True)


@kprobes.native
def count(ri, regs):
    counted[0] += 1


@kprobes.native
def count_entry(ri, regs):
    counted[1] += 1


@kprobes.native
def read_registers(ri, regs):
    counted[0] += 1
    counted[2] += regs.ax + regs.r10 + regs.flags


@kprobes.native
def read_at_entry(ri, regs) -> i32:
    counted[1] += 1
    counted[2] += regs.di + regs.r11
    ri.data[0] = 1
    return 0


@kprobes.native
def decline(ri, regs) -> i32:
    counted[1] += 1
    return 1


@kprobes.native
def count_hit(p, regs) -> i32:
    counted[3] += 1
    return 0


returned_in_python = []


def in_python(ri, regs):
    returned_in_python.append(regs.ax)


def in_python_at_entry(ri, regs):
    return 0 if sum(x * 1.5 for x in range(10)) else 1


def in_c():
    return full_registers.library().c_handler


Given = dict[str, object]
HANDLERS: dict[str, Callable[[], Given]] = {
    "native": lambda: {"handler": count},
    "native both": lambda: {"handler": count, "entry_handler": count_entry},
    "native registers": lambda: {"handler": read_registers, "entry_handler": read_at_entry, "data_size": 8},
    "native large data": lambda: {"handler": count, "entry_handler": read_at_entry, "data_size": 400},
    "native declining": lambda: {"handler": count, "entry_handler": decline},
    "python": lambda: {"handler": in_python},
    "python both": lambda: {"handler": in_python, "entry_handler": in_python_at_entry},
    "c": lambda: {"handler": in_c(), "entry_handler": in_c()},
    "none": dict,
}
CALLS = 20


def expect_kept(entry: str, what: str) -> None:
    for seed in range(CALLS):
        found = full_registers.differences(entry, seed)
        assert not found, f"{what}: {found[0]} ({len(found)} registers)"


@isolated
def test_the_program_itself_keeps_every_register():
    for entry in full_registers.ENTRIES:
        expect_kept(entry, "no probe")


@pytest.mark.parametrize("entry", sampled(full_registers.ENTRIES, 1))
@pytest.mark.parametrize("optimized", [in_stress(False), True], ids=["breakpoint", "jump"])
@isolated(timeout=120)
def test_kretprobes_keep_every_register_and_flag_of_foreign_code(optimized, entry):
    full_registers.library()
    kprobes.set_kprobes_optimization(int(optimized))
    for kind, given in HANDLERS.items():
        before = counted[0]
        returned_in_python.clear()
        rp = kprobes.kretprobe(symbol_name=f"libfullregs:{entry}", python_unsafe=True, **given())
        kprobes.register_kretprobe(rp)
        kprobes.wait_for_kprobe_optimizer()
        expect_optimized(rp.kp.addr, optimized)
        expect_kept(entry, kind)
        expected = 0 if kind in ("c", "none", "native declining") else CALLS
        assert counted[0] - before + len(returned_in_python) == expected, kind
        kprobes.unregister_kretprobe(rp)
        assert (rp.nmissed, rp.kp.nmissed) == (0, 0)
        expect_kept(entry, f"after {kind}")


@pytest.mark.parametrize("entry", sampled(full_registers.ENTRIES, 1))
@pytest.mark.parametrize("optimized", [False, True], ids=["breakpoint", "jump"])
@isolated(timeout=120)
def test_probes_together_keep_every_register_and_flag_of_foreign_code(optimized, entry):
    full_registers.library()
    kprobes.set_kprobes_optimization(int(optimized))
    probes = [
        kprobes.kretprobe(symbol_name=f"libfullregs:{entry}", python_unsafe=True, **given())
        for given in HANDLERS.values()
    ]
    kp = kprobes.kprobe(symbol_name=f"libfullregs:{entry}", pre_handler=count_hit)
    kprobes.register_kretprobes(probes)
    kprobes.register_kprobe(kp)
    kprobes.wait_for_kprobe_optimizer()
    expect_optimized(kp.addr, optimized)
    expect_kept(entry, "all together")
    assert counted[3] == CALLS
    assert all(rp.nmissed == 0 for rp in probes)
    kprobes.unregister_kretprobes(probes)
    kprobes.wait_for_kprobe_optimizer()
    expect_kept(entry, "a kprobe where kretprobes have been")
    assert counted[3] == 2 * CALLS
    kprobes.disable_kprobe(kp)
    expect_kept(entry, "disabled")
    kprobes.enable_kprobe(kp)
    kprobes.wait_for_kprobe_optimizer()
    expect_kept(entry, "enabled")
    assert counted[3] == 3 * CALLS


@pytest.mark.parametrize("optimized", [False, True], ids=["breakpoint", "jump"])
@isolated(timeout=60)
def test_a_call_that_is_not_hooked_keeps_every_register_and_flag_of_foreign_code(optimized):
    """The detour is made for calls that are."""
    full_registers.library()
    kprobes.set_kprobes_optimization(int(optimized))
    rp = kprobes.kretprobe(symbol_name="libfullregs:target_long", handler=count, entry_handler=decline, maxactive=1)
    kprobes.register_kretprobe(rp)
    kprobes.wait_for_kprobe_optimizer()
    expect_kept("target_long", "declined by the entry handler")
    assert (counted[0], counted[1]) == (0, CALLS)


def expect_optimized(address: int, optimized: bool) -> None:
    from kprobes.place import places

    assert bool(places[address].record.optimized) == optimized
