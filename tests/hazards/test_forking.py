"""HAZARDS 7, 6: forks, also while threads that Python does not know run Python handlers: nothing in a child is taken or gone."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import struct
import subprocess
import threading
import time
from pathlib import Path

import pytest
from isolation import TESTS, isolated, run_source
from programs import basic, load_c
from sampled import sampled

import fprobe
import kprobes
from ftrace.core.handlers import python_handler
from kprobes.hit.records import Kretprobe
from sandbox.loading.csource import find_compiler

THREADS = r"""
#include <pthread.h>
#include <stdatomic.h>
enum { THREADS = 4 };
static atomic_int stop;
static atomic_long called;
static pthread_t threads[THREADS], single;
__attribute__((noipa)) long leaf(long x) { return x + 1; }
static void *once(void *unused) { leaf(1); called++; return 0; }
static void *again_and_again(void *unused) { while (!stop) once(0); return 0; }
static void *in_new_threads(void *unused) {
    pthread_t brief;
    while (!stop) { pthread_create(&brief, 0, once, 0); pthread_join(brief, 0); }
    return 0;
}
void start(long brief) {
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], 0, brief ? in_new_threads : again_and_again, 0);
}
void finish(void) { stop = 1; for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0); }
void start_one(void) { pthread_create(&single, 0, once, 0); }
void finish_one(void) { pthread_join(single, 0); }
long calls(void) { return called; }
"""
SLOW = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <semaphore.h>
#include <unistd.h>
int sem_post(sem_t *semaphore) {
    if (gettid() != getpid()) usleep(200);
    return ((int (*)(sem_t *))dlsym(RTLD_NEXT, "sem_post"))(semaphore);
}
"""
"""To be preloaded: all threads but the first keep the interpreter's locks longer. With Python 3.11 one of the first forks
then hangs if nothing is done about it, where it was one in a hundred."""
FORKS = 30
HANGS = 10
"""Seconds."""


def nothing(*hit):
    return 0


def variable(name):
    return python_handler._image().variable(f"thread_states_{name}")


def forked(body):
    """The exit status of a child: 0 if body() is true there."""
    pid = os.fork()
    if pid == 0:
        os._exit(0 if body() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def children():
    lists = (task / "children" for task in Path("/proc/self/task").iterdir())
    return [int(number) for file in lists if file.exists() for number in file.read_text().split()]


def end_what_hangs(number_of_forks):
    """End children when no fork has begun for some seconds: each hangs in the interpreter, and our os.fork waits for it."""
    before, since = 0, time.monotonic()
    while True:
        time.sleep(0.1)
        if number_of_forks[0] != before:
            before, since = number_of_forks[0], time.monotonic()
        elif time.monotonic() - since > HANGS:
            for pid in children():
                os.kill(pid, signal.SIGKILL)


def forks(threads):
    """The body of the next test."""
    module = load_c(THREADS)
    number = [0]
    threading.Thread(target=end_what_hangs, args=(number,), daemon=True).start()
    with fprobe.attach("leaf", entry=nothing) as probe:
        module["start"](threads == "brief")
        for number[0] in range(FORKS):
            assert forked(lambda: True) == 0, f"fork {number[0]} hung"
        module["finish"]()
        assert probe.hits == module["calls"]() and probe.counts.missed == 0
        assert forked(lambda: module["leaf"](1) == 2) == 0
    print("the test has ended")


@pytest.mark.stress
@pytest.mark.parametrize("threads", sampled(["brief", "lasting"], 1))
def test_no_child_hangs_though_native_threads_come_to_python_handlers(threads, tmp_path):
    slow, paths = tmp_path / "slow.so", [str(Path(__file__).parent), str(TESTS)]
    compiler = find_compiler("C", slow)
    subprocess.run([*compiler, "-shared", "-fPIC", "-o", slow, "-xc", "-"], input=SLOW, text=True, check=True)
    source = f"import sys; sys.path[:0] = {paths}; import test_forking; test_forking.forks({threads!r})"
    done = run_source(source, timeout=60, LD_PRELOAD=str(slow))
    assert done.stdout == "the test has ended\n", done.stderr


@isolated
def test_a_thread_that_python_does_not_know_waits_while_a_fork_is_under_way():
    module = load_c(THREADS)
    with fprobe.attach("leaf", entry=nothing) as probe:
        variable("held_off").value += 1
        module["start_one"]()
        time.sleep(0.2)
        assert module["leaf"](1) == 2, "but not one that it knows"
        assert module["calls"]() == 0
        variable("held_off").value -= 1
        module["finish_one"]()
        assert module["calls"]() == 1 and probe.hits == 2
        assert variable("coming").value == 0


@isolated
def test_a_fork_waits_for_those_that_are_getting_a_thread_state_and_they_get_the_gil():
    module = load_c(THREADS)

    def has_got_it():
        time.sleep(0.2)
        variable("coming").value -= 1

    def in_child():
        return variable("coming").value == variable("held_off").value == 0 and module["leaf"](1) == 2

    with fprobe.attach("leaf", entry=nothing):
        variable("coming").value += 1
        thread = threading.Thread(target=has_got_it)
        start = time.monotonic()
        thread.start()
        assert forked(in_child) == 0
        assert time.monotonic() - start >= 0.2
        thread.join()
        assert variable("coming").value == variable("held_off").value == 0


@pytest.mark.stress
@isolated(timeout=60)
def test_threads_that_wait_for_each_other_part_after_some_seconds():
    module = load_c(THREADS)
    with fprobe.attach("leaf", entry=nothing) as probe:
        variable("coming").value += 1  # a thread that never gets its state
        assert forked(lambda: variable("coming").value == 0 and module["leaf"](1) == 2) == 0
        variable("coming").value -= 1
        variable("held_off").value += 1  # a fork that never ends
        module["start_one"]()
        module["finish_one"]()
        variable("held_off").value -= 1
        assert probe.hits == 1 and variable("coming").value == 0


@isolated
def test_a_child_touches_no_kretprobe_that_the_collector_has_taken():
    """It puts the instances of all kretprobes in order, also of those that are garbage in a cycle."""
    basic()
    gc.disable()
    for _ in range(8):
        with kprobes.attach_return("leaf", lambda *_: None):
            pass
    blocks = []
    native_id = threading.get_native_id

    def collected():
        gc.collect()
        size = ctypes.sizeof(Kretprobe.ctypes)
        blocks.extend((ctypes.c_uint8 * size)() for _ in range(2000))
        return native_id()

    threading.get_native_id = collected
    child = os.fork()
    if not child:
        os._exit(bool(any(any(block) for block in blocks)) if blocks else 2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@isolated(timeout=60)
def test_a_child_counts_for_itself_where_mremap_is_denied() -> None:
    """A seccomp filter may deny mremap, but mmap is needed by everything."""
    libz = ctypes.CDLL("libz.so.1")
    with fprobe.attach("libz:zlibVersion", action=fprobe.Stat()) as probe:
        libz.zlibVersion()
        deny(MREMAP)
        kept = fprobe.attach("libz:crc32", action=fprobe.Count()).attach()
        libz.crc32(0, None, 0)
        child = os.fork()
        if not child:
            libz.zlibVersion()
            libz.crc32(0, None, 0)
            assert (probe.hits, kept.hits) == (2, 2)
            with fprobe.attach("libz:adler32", action=fprobe.Stat()) as own:
                libz.adler32(0, None, 0)
            assert own.hits == 1
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert (probe.hits, kept.hits) == (1, 1)
        libz.zlibVersion()
        assert probe.hits == 2


MREMAP = 25


def deny(number: int) -> None:
    """Let a system call fail with EPERM from now on."""
    rules = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (6, 0, 0, 0x50001), (6, 0, 0, 0x7FFF0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(rules), ctypes.addressof(code)))
    libc = ctypes.CDLL(None)
    assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program) == 0
