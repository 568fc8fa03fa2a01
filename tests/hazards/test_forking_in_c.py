"""HAZARDS 7, 10: a fork that C code makes, where no Python hook runs, leaves parent and child text of their own."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time

import pytest
from isolation import isolated
from programs import load_c
from sampled import in_stress

import fprobe
import kprobes
from sandbox.memory import mappings
from sandbox.process.shared_text import ForkWords

PROGRAM = r"""
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
__attribute__((noipa)) long leaf(long x) { return x + 1; }
__attribute__((noipa)) long other(long x) { return x + 2; }
static long wrong(long calls) {
    long found = 0;
    for (long i = 0; i < calls; i++) found |= leaf(i) != i + 1 || other(i) != i + 2;
    return found;
}
long child_that_calls(volatile char *words) {
    int pid = fork();
    if (pid) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    words[1] = 1;
    long found = 0;
    while (!words[0]) found |= wrong(100);
    _exit(found);
}
long children_that_end_badly(long count) {
    long failed = 0;
    for (long i = 0; i < count; i++) {
        int status, pid = fork();
        if (!pid) { prctl(PR_SET_PDEATHSIG, SIGKILL); _exit(wrong(3000)); }
        waitpid(pid, &status, 0);
        failed += status != 0;
    }
    return failed;
}
"""


def nothing(*_hit):
    return 0


def status_of(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def patch_everything():
    """Arm and disarm a site, a breakpoint and a jump."""
    with fprobe.attach("leaf", entry=nothing, exit=nothing):
        pass
    kp = kprobes.kprobe(symbol_name="other", offset=5, pre_handler=nothing)
    kprobes.register_kprobe(kp)
    time.sleep(0.01)
    kprobes.wait_for_kprobe_optimizer()
    time.sleep(0.01)
    kprobes.unregister_kprobe(kp)
    kprobes.wait_for_kprobe_optimizer()


class Child:
    """A child that C has forked, calling leaf and other until it is told to end."""

    def __init__(self, module):
        self._words = mmap.mmap(-1, mmap.PAGESIZE)
        self._pid = module["child_that_calls"](ctypes.addressof(ctypes.c_char.from_buffer(self._words)))
        while not self._words[1]:
            time.sleep(0.001)

    def ends_well(self):
        self._words[0] = 1
        return status_of(self._pid) == 0


@isolated
@pytest.mark.parametrize("first", ["the fork", in_stress("the probe")])
def test_fork_in_c_what_the_parent_patches_does_not_run_in_the_child(first):
    module = load_c(PROGRAM)
    if first == "the probe":
        patch_everything()
    child = Child(module)
    for _ in range(5):
        patch_everything()
    assert child.ends_well()


@pytest.mark.stress
@isolated(timeout=60)
def test_fork_in_c_while_another_thread_patches():
    module = load_c(PROGRAM)
    patch_everything()
    stop = threading.Event()

    def patch():
        while not stop.is_set():
            patch_everything()

    thread = threading.Thread(target=patch)
    thread.start()
    failed = module["children_that_end_badly"](100)
    stop.set()
    thread.join()
    assert failed == 0


@isolated
def test_fork_in_c_by_a_thread_that_has_the_gil_waits_for_one_that_patches_and_needs_it():
    """As subprocess does: the thread that has text open cannot go on unless the forking one lets go of the GIL."""
    module = load_c(PROGRAM)
    with fprobe.attach("leaf", entry=nothing):
        pass
    fork_with_the_gil = ctypes.PyDLL(None).fork
    text, opened, order = module.texts[0], threading.Event(), []

    def patch():
        with text.writable():
            opened.set()
            time.sleep(0.3)
            order.append("patched")

    thread = threading.Thread(target=patch)
    thread.start()
    opened.wait()
    pid = fork_with_the_gil()
    if not pid:
        os._exit(0)
    order.append("forked")
    thread.join()
    assert status_of(pid) == 0 and order == ["patched", "forked"]


@isolated
def test_fork_in_c_child_of_a_thread_without_the_gil_passes_python_handlers_over():
    """The GIL is another thread's in the child, and nobody is left who could give it."""
    module = load_c(PROGRAM)
    with fprobe.attach("leaf", entry=nothing) as probe:
        module["leaf"](1)
        switch = threading.Event()
        thread = threading.Thread(target=switch.wait)
        thread.start()
        child = Child(module)
        assert child.ends_well()
        hits = probe.hits
        module["leaf"](1)
        assert probe.hits == hits + 1
        pid = os.fork()
        if not pid:  # where Python's hooks run they are called
            module["leaf"](1)
            os._exit(probe.hits != hits + 2)
        assert status_of(pid) == 0
        switch.set()
        thread.join()


@isolated
def test_a_change_of_a_thread_that_the_child_does_not_have_holds_up_no_fork_of_the_child():
    """The parent waited for it as long as it does, and forked all the same."""
    from ftrace.core.runtime import runtime

    in_child = runtime().image.call
    words = ForkWords.from_address(mappings.fork_words())
    here = threading.get_ident()
    for writer, left in ((here, here), (here + 1, 0)):
        words.writer, words.in_progress = writer, 1  # the fork that made it
        in_child("fork_in_child")
        assert (words.writer, words.in_progress) == (left, 0)


COUNTING = r"""
#include <sys/prctl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
__attribute__((noipa)) long leaf(long x) { return x + 1; }
static void call(long calls) { for (long i = 0; i < calls; i++) leaf(i); }
long children_that_count(long count, long calls, void (*check)(long)) {
    long failed = 0;
    int pids[16];
    for (long i = 0; i < count; i++) {
        pids[i] = fork();
        if (!pids[i]) { prctl(PR_SET_PDEATHSIG, SIGKILL); call(calls); check(i); _exit(1); }
    }
    call(calls);
    for (long i = 0; i < count; i++) {
        int status;
        waitpid(pids[i], &status, 0);
        failed += status != 0;
    }
    return failed;
}
"""


@isolated(timeout=60)
def test_children_of_c_count_for_themselves_and_have_all_nodes_of_a_small_pool():
    """They counted in their parent's lines, at the same time: hits and credits were lost in each of them."""
    module = load_c(COUNTING)
    with fprobe.attach("leaf", action=fprobe.Stat(), nr_maxactive=1) as probe:
        module["leaf"](0)

        def check(_number):
            os._exit(0 if probe.counts[:6] == (200_001, 0, 0, 0, 0, 0) else 3)

        called = ctypes.CFUNCTYPE(None, ctypes.c_long)(check)
        assert module["children_that_count"](4, 200_000, ctypes.cast(called, ctypes.c_void_p).value) == 0
        assert probe.counts[:6] == (200_001, 0, 0, 0, 0, 0), probe.counts


@isolated(timeout=60)
def test_a_child_of_python_below_a_child_of_c_has_a_file_of_its_own():
    from ftrace.core.runtime import runtime

    module, fork_in_c = load_c(COUNTING), ctypes.PyDLL(None).fork
    with fprobe.attach("leaf", action=fprobe.Stat()) as probe:
        module["leaf"](0)
        child = fork_in_c()
        if not child:
            assert not runtime().counters.readable
            module["leaf"](0)
            grandchild = os.fork()
            if grandchild:
                os._exit(status_of(grandchild))
            module["leaf"](0)
            own = runtime().counters.readable and runtime().counters.header.pid == os.getpid()
            os._exit(0 if own and probe.hits == 3 else 4)
        assert status_of(child) == 0 and probe.hits == 1
