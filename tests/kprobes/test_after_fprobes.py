"""HAZARDS 11: what is taken away leaves every table. Breakpoints of kprobes where an fprobe has had its own."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from built_library import built_library, needs_compilers
from isolation import isolated
from sampled import sampled

import fprobe
import kprobes

pytestmark = needs_compilers

CALLS = 10
BODIES = {
    "short": "mov %rdi, %rax; add $2, %rax; ret",  # a jump absorbs the second instruction
    "pushes": "push %rbx; push %rcx; mov %rdi, %rbx; lea 2(%rbx), %rax; pop %rcx; pop %rbx; ret",  # ... three of them
    "looped": "push %rbx; 1: mov $5, %eax; dec %rsi; jns 1b; lea 2(%rdi), %rax; pop %rbx; ret",  # only a breakpoint fits
}

SIZES = {"short": 8, "pushes": 12, "looped": 17}


def functions() -> dict[str, Callable[[int, int], int]]:
    """x + 2, in different instructions."""
    lines = [".text"]
    for name, code in BODIES.items():
        lines += [".p2align 4", "nop", "nop", "nop", f".globl {name}", f".type {name},@function", f"{name}:"]
        lines += [*(part.strip() for part in code.split(";")), f".size {name}, .-{name}"]
    library = built_library("libbodies", "\n".join(f'__asm__("{line}");' for line in lines))
    return {name: ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_long, ctypes.c_long)((name, library)) for name in BODIES}


def offsets(name: str) -> list[int]:
    """Where the instructions of a function begin."""
    found = []
    for offset in range(SIZES[name]):
        try:
            kprobes.attach(f"libbodies:{name}+{offset}", action=kprobes.Count()).attach().detach()
        except (OSError, ValueError):
            continue
        found.append(offset)
    return found


def check_kprobes(call: Callable[[int, int], int], name: str) -> None:
    """Kprobes on all instructions of the function, alone and together, are hit in each call."""
    places = offsets(name)
    assert len(places) >= 3
    for chosen in (*([place] for place in places), places):
        with ExitStack() as stack:
            probes = [
                stack.enter_context(kprobes.attach(f"libbodies:{name}+{place}", action=kprobes.Count()))
                for place in chosen
            ]
            assert [call(x, 0) for x in range(CALLS)] == [x + 2 for x in range(CALLS)]
            assert {place: probe.hits for place, probe in zip(chosen, probes, strict=True)} == dict.fromkeys(
                chosen, CALLS
            )


@pytest.mark.parametrize("name", sampled(BODIES, 1))
@isolated
def test_after_an_fprobe_is_gone(name):
    call = functions()[name]
    kprobes.set_kprobes_optimization(0)
    with fprobe.attach(f"libbodies:{name}", action=fprobe.Stat()) as probe:
        assert call(1, 0) == 3
    assert probe.hits == 1
    check_kprobes(call, name)


@pytest.mark.stress
@pytest.mark.parametrize("name", sampled(BODIES, 1))
@isolated
def test_after_an_fprobe_whose_patch_has_retreated_to_a_breakpoint_is_gone(name):
    call = functions()[name]
    kprobes.set_kprobes_optimization(0)
    places = offsets(name)
    with fprobe.attach(f"libbodies:{name}", action=fprobe.Stat()) as probe:
        with kprobes.attach(f"libbodies:{name}+{places[1]}", action=kprobes.Count()) as inside:
            assert call(1, 0) == 3
        assert call(1, 0) == 3
    assert (probe.hits, inside.hits) == (2, 1)
    check_kprobes(call, name)
    with fprobe.attach(f"libbodies:{name}", action=fprobe.Stat()) as probe:
        assert call(1, 0) == 3
    assert probe.hits == 1


@pytest.mark.parametrize("name", sampled(BODIES, 1))
@isolated
def test_while_ftrace_is_disabled(name):
    from ftrace.tracing.files.sysctl import set_ftrace_enabled

    call = functions()[name]
    kprobes.set_kprobes_optimization(0)
    with fprobe.attach(f"libbodies:{name}", action=fprobe.Stat()) as probe:
        set_ftrace_enabled(0)
        assert call(1, 0) == 3
        set_ftrace_enabled(1)
        assert call(1, 0) == 3
        fprobe.detach_all()
        assert probe.hits == 1
        check_kprobes(call, name)
