"""HAZARDS 11: siglongjmp out of a signal's handler that has interrupted a hit. Later hits are hits, and none is lost."""

from __future__ import annotations

import ctypes
import os
import threading

import pytest
from built_library import built_library, needs_compilers
from isolation import isolated
from left_hits import program
from sampled import in_stress, sampled

import fprobe
import kprobes

pytestmark = needs_compilers


def attached(kind):
    if kind == "fprobe":
        return fprobe.attach("libleft:leaf", action=fprobe.Stat()).attach()
    if kind == "entry":
        return fprobe.attach("libleft:leaf", action=fprobe.Count()).attach()
    if kind == "registers":
        return fprobe.attach("libleft:leaf", entry=looks, exit=looks).attach()
    if kind == "kprobe":
        return kprobes.attach("libleft:leaf", action=kprobes.Count()).attach()
    if kind == "kretprobe":
        return kprobes.attach_return("libleft:leaf", action=kprobes.Count()).attach()
    if kind == "post":
        return Posts()
    library = built_library("libhandlers", "int zero(void) { return 0; }")
    in_c = ctypes.CFUNCTYPE(ctypes.c_int)(("zero", library))
    return fprobe.attach("libleft:leaf", entry=in_c, exit=in_c).attach()


class Posts:
    """A kprobe with a post_handler alone, in C, which counts: the instruction is stepped in a slot before it."""

    def __init__(self):
        self._library = built_library("libposts", "long hits; void post(void) { hits++; }")
        in_c = ctypes.CFUNCTYPE(None)(("post", self._library))
        self._probe = kprobes.attach("libleft:leaf", post=in_c).attach()

    @property
    def hits(self):
        return ctypes.c_long.in_dll(self._library, "hits").value


@fprobe.native
def looks(fp, ip, ret_ip, regs, data):
    regs.r11 = regs.r11


KINDS = (
    "fprobe",
    "entry",
    "registers",
    "C",
    "kprobe",
    "kretprobe",
    "fprobe+fprobe",
    "fprobe+kretprobe",
    "kprobe+kretprobe",
)


@pytest.mark.parametrize("every", [8, in_stress(1)])
@pytest.mark.parametrize("kinds", sampled(KINDS, 2))
@isolated(timeout=100)
def test_a_hit_that_is_left_at_any_instruction(kinds, every):
    """Or at every eighth: at others in each run."""
    check_left_anywhere(kinds, range(1 + os.getpid() % every, 5000, every))


@isolated(timeout=100, cold=True)
def test_a_step_that_is_left_has_ended():
    """Or what follows it: later hits of the thread were missed for good. The program's handler of SIGTRAP is there first."""
    check_left_anywhere("post", range(100, 5000, 3))


def check_left_anywhere(kinds, counts):
    library = program()
    probes = [attached(kind) for kind in kinds.split("+")]
    kprobes.wait_for_kprobe_optimizer()
    library.call(1)
    for count in counts:
        if not library.leave_after(count):
            break
        before = [probe.hits for probe in probes]
        library.call_deeper(1)
        library.call(2)
        hits = [probe.hits - old for probe, old in zip(probes, before, strict=True)]
        assert hits == [3] * len(probes), f"after {count} instructions: {hits}"
    assert 20 < count < 5000


@pytest.mark.parametrize("kind", ["fprobe", in_stress("entry"), in_stress("C")])
@isolated(timeout=100)
def test_a_thread_that_has_left_a_hit_and_blocks_is_not_waited_for(kind):
    library, ready, over = program(), threading.Event(), threading.Event()
    probe = attached(kind)

    def leave_and_block():
        library.call(1)
        library.leave_after(40)
        ready.set()
        over.wait()

    thread = threading.Thread(target=leave_and_block)
    thread.start()
    ready.wait()
    probe.detach()
    over.set()
    thread.join()
    assert probe.hits >= 1
