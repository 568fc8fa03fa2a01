"""Hazard: around an fprobe on code that was not compiled here no register and no flag is free, on neither side of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import full_registers
import pytest
from isolation import isolated
from sampled import sampled

import fprobe
from ftrace.core.sites.entry_plans import Mechanism
from ftrace.core.tracer import tracer
from sandbox.native import cast, i32, ptr, u64

counted = fprobe.Array(u64, 4, shared=True)
CALLS = 10


@fprobe.native
def enters(fp, ip, ret_ip, regs, data) -> i32:
    counted[0] += 1
    return 0


@fprobe.native
def leaves(fp, ip, ret_ip, regs, data):
    counted[1] += 1


@fprobe.native
def reads_arguments(fp, ip, ret_ip, regs, data) -> i32:
    counted[0] += 1
    counted[2] += regs.di + regs.ax
    return 0


@fprobe.native
def reads_stack(fp, ip, ret_ip, regs, data) -> i32:
    counted[0] += 1
    counted[2] += regs.sp
    return 0


@fprobe.native
def reads_all(fp, ip, ret_ip, regs, data) -> i32:
    counted[0] += 1
    counted[2] += regs.r10 + regs.r11 + regs.flags + regs.bx
    return 0


@fprobe.native
def reads_result(fp, ip, ret_ip, regs, data):
    counted[1] += 1
    counted[2] += regs.ax + regs.dx


@fprobe.native
def reads_all_at_return(fp, ip, ret_ip, regs, data):
    counted[1] += 1
    counted[2] += regs.r9 + regs.r11 + regs.flags


@fprobe.native
def writes_data(fp, ip, ret_ip, regs, data: ptr[u64]) -> i32:
    counted[0] += 1
    data[0] = ip
    return 0


@fprobe.native
def reads_data(fp, ip, ret_ip, regs, data: ptr[u64]):
    counted[1] += cast(u64, data[0] == ip)


@fprobe.native
def declines(fp, ip, ret_ip, regs, data) -> i32:
    counted[0] += 1
    return 1


noted = [0, 0]


def in_python(*_: Any) -> int:
    noted[0] += 1
    return 0 if sum(x * 1.5 for x in range(10)) else 1


def in_python_at_return(*_: Any) -> None:
    noted[1] += 1


HANDLERS: dict[str, Callable[[], dict[str, Any]]] = {
    "entry": lambda: {"entry": enters},
    "both": lambda: {"entry": enters, "exit": leaves},
    "exit": lambda: {"exit": leaves},
    "arguments": lambda: {"entry": reads_arguments, "exit": reads_result},
    "stack": lambda: {"entry": reads_stack, "exit": leaves},
    "arguments only": lambda: {"entry": reads_arguments},
    "all": lambda: {"entry": reads_all, "exit": reads_all_at_return},
    "a word": lambda: {"entry": writes_data, "exit": reads_data},
    "data": lambda: {"entry": writes_data, "exit": reads_data, "entry_data_size": 48},
    "large data": lambda: {"entry": writes_data, "exit": reads_data, "entry_data_size": 400},
    "declining": lambda: {"entry": declines, "exit": leaves},
    "python": lambda: {"entry": in_python, "exit": in_python_at_return},
    "c": lambda: {"entry": full_registers.library().c_handler, "exit": full_registers.library().c_handler},
    "stat": lambda: {"action": fprobe.Stat()},
}


def expect_kept(entry: str, what: str) -> None:
    for seed in range(CALLS):
        found = full_registers.differences(entry, seed)
        assert not found, f"{what}: {found[0]} ({len(found)} registers)"


def expected_counts(kind: str, given: dict[str, Any]) -> tuple[int, int]:
    if kind in ("c", "stat"):
        return 0, 0
    return CALLS * ("entry" in given), CALLS * ("exit" in given and kind != "declining")


def seen() -> tuple[int, int]:
    return counted[0] + noted[0], counted[1] + noted[1]


def retreat_to_breakpoints() -> None:
    """The last resort, where no jump fits."""
    for block in tracer().table.of_images:
        for index in list(block.mechanisms):
            block.retreat(index)
            block._retreated.discard(index)


@pytest.mark.parametrize("entry", sampled(full_registers.ENTRIES, 1))
@pytest.mark.parametrize("by", ["jump", "breakpoint"])
@isolated(timeout=100)
def test_every_register_and_flag_is_kept(by: str, entry: str) -> None:
    full_registers.library()
    for kind, make in HANDLERS.items():
        given = make()
        before = seen()
        if by == "breakpoint":
            with fprobe.attach(f"libfullregs:{entry}", entry=enters):
                pass
            retreat_to_breakpoints()
        with fprobe.attach(f"libfullregs:{entry}", **given) as probe:
            mechanisms = {mechanism for block in tracer().table.of_images for mechanism in block.mechanisms.values()}
            assert (mechanisms == {Mechanism.BREAKPOINT}) == (by == "breakpoint"), mechanisms
            expect_kept(entry, kind)
            assert (probe.hits, probe.counts.missed) == (CALLS, 0), kind
        found = tuple(now - then for now, then in zip(seen(), before, strict=True))
        assert found == expected_counts(kind, given), kind
        expect_kept(entry, f"after {kind}")


@pytest.mark.parametrize("entry", sampled(full_registers.ENTRIES, 1))
@isolated(timeout=100)
def test_several_probes_keep_every_register_and_flag(entry: str) -> None:
    probes = [fprobe.attach(f"libfullregs:{entry}", **make()) for make in HANDLERS.values() if full_registers.library()]
    for probe in probes:
        probe.attach()
    expect_kept(entry, "all together")
    assert [(probe.hits, probe.counts.missed) for probe in probes] == [(CALLS, 0)] * len(probes)
    for probe in probes:
        probe.detach()
    expect_kept(entry, "none")
