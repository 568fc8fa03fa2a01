"""A hit that is left by longjmp before its post_handler is called: a miss, for a probe that has no pre_handler.

It is left out of a handler, of a signal's handler while the instruction is executed in its slot, or of a system call. Later hits
are hits.
"""

from __future__ import annotations

import ctypes
import os

import pytest
from built_library import built_library, needs_compilers
from isolation import isolated
from left_hits import program
from sampled import in_stress

import fprobe
import kprobes
from kprobes.place import between
from sandbox.native import u64

pytestmark = needs_compilers

CALLS = """
#include <setjmp.h>
#include <signal.h>
#include <unistd.h>
#include <sys/syscall.h>

static sigjmp_buf back;
long leaving, calls;
int leave(void) { calls++; if (leaving) siglongjmp(back, 1); return 0; }
int count(void) { calls++; return 0; }
static void on_alarm(int number) { siglongjmp(back, 1); }
static void on_other(int number) { }
void handle(int number, int leaves) { signal(number, leaves ? on_alarm : on_other); }
__asm__(".globl waiting\\n.type waiting,@function\\nwaiting: mov $34, %eax\\nsyscall\\nret\\n.size waiting, .-waiting\\n");
long waiting(void);
__attribute__((noinline)) long leaf(long x) { __asm__ volatile(""); return x * 3 + 1; }
/* pause() until a signal comes: 1 if its handler has left it. */
long wait_for_signal(void) { if (sigsetjmp(back, 1)) return 1; alarm(1); waiting(); return 0; }
long call(long x) { if (sigsetjmp(back, 1)) return -1; return leaf(x); }
"""
counts = fprobe.Array(u64, 2, shared=True)
"""Of what has been called."""


@kprobes.native
def after(p, regs, flags):
    counts[0] += 1


@kprobes.native
def after_too(p, regs, flags):
    counts[1] += 1


def in_c(library, name):
    return ctypes.CFUNCTYPE(ctypes.c_int)((name, library))


@pytest.mark.parametrize("every", [5, in_stress(1)])
@pytest.mark.parametrize("kind", ["native", "C"])
@isolated(cold=True, timeout=100)
def test_at_any_instruction(kind, every):
    """All hits are counted once, as hits or as misses, but where a handler in C has been called and has not counted yet."""
    library, handlers = program(), built_library("libpost", CALLS)
    number = ctypes.c_long.in_dll(handlers, "calls")
    post = after if kind == "native" else in_c(handlers, "count")
    hits = (lambda: counts[0]) if kind == "native" else (lambda: number.value)
    with kprobes.attach("libleft:leaf", post=post) as probe:
        record = between(probe.p.addr, probe.p.addr + 1)[0].record
        seen = []
        start, step = (1, 1) if kind == "native" else (1 + os.getpid() % every, every)  # few steps are not in a handler
        for count in range(start, 5000, step):
            before = hits(), probe.missed
            if not library.leave_after(count):
                break
            at_once = hits() - before[0]
            library.call_deeper(1)
            library.call(2)
            assert hits() - before[0] - at_once == 3, f"after {count} instructions"
            in_slot = ctypes.c_ulong.in_dll(library, "left").value in (record.slot, record.step_end)
            missed = probe.missed - before[1]
            assert at_once + missed <= 1
            assert missed == 1 or not in_slot
            seen.append((at_once, missed, in_slot))
    assert {(0, 0), (0, 1), (1, 0)} <= {each[:2] for each in seen}
    assert step > 1 or any(each[2] for each in seen)
    assert not kprobes.kprobe_running()


@isolated(timeout=60)
def test_a_system_call_that_is_left():
    """One that a signal only interrupts ends, and its post_handler is called."""
    library = built_library("libpost", CALLS)
    with (
        kprobes.attach("libpost:waiting+5", post=after) as post,
        kprobes.attach("libpost:leaf", pre=in_c(library, "count")),
    ):
        library.handle(14, 1)
        for times in range(1, 3):
            assert library.wait_for_signal() == 1
            library.call(1)
            assert (counts[0], post.missed) == (0, times)
        library.handle(14, 0)
        assert library.wait_for_signal() == 0
        library.call(1)
        assert (counts[0], post.missed) == (1, 2)


@isolated(timeout=60)
def test_probes_whose_turn_has_not_come():
    """The pre_handler of another probe at the place leaves the hit, or a post_handler."""
    library = built_library("libpost", CALLS)
    leaving = ctypes.c_long.in_dll(library, "leaving")
    leave = in_c(library, "leave")
    with kprobes.attach("libpost:leaf", post=after) as first, kprobes.attach("libpost:leaf", post=after_too) as second:
        for role, expected in (("pre", (1, 1)), ("post", None)):
            with kprobes.attach("libpost:leaf", **{role: leave}) as leaver:
                before = first.missed, second.missed
                leaving.value = 1
                assert library.call(1) == -1
                leaving.value = 0
                assert library.call(1) == 4
                missed = first.missed - before[0], second.missed - before[1]
                assert missed == (expected or (1, 1))  # the newest is called first
                assert leaver.missed == 0
    assert [counts[0], counts[1]] == [2, 2]
