"""Hazard: threads that compute keep the GIL; who registers a probe gives it up a thousand times and has to get it back soon."""

from __future__ import annotations

import ctypes
import os
import sys
import threading

import pytest
from isolation import isolated

import fprobe
import kprobes
from fprobe import registration
from ftrace.core.handlers import native_handler
from sandbox.process.gil import short_switch_interval

USUAL = 0.005
SHORT = pytest.approx(0.0001)


@pytest.fixture(autouse=True)
def usual():
    sys.setswitchinterval(USUAL)
    yield
    assert sys.getswitchinterval() == pytest.approx(USUAL)


def test_the_switch_interval_is_short_within_it_and_as_before_behind_it():
    with short_switch_interval():
        assert sys.getswitchinterval() == SHORT
        with short_switch_interval():
            pass
        assert sys.getswitchinterval() == SHORT
    assert sys.getswitchinterval() == pytest.approx(USUAL)


def test_a_shorter_interval_of_the_program_stays():
    sys.setswitchinterval(0.00002)
    with short_switch_interval():
        assert sys.getswitchinterval() == pytest.approx(0.00002)
    assert sys.getswitchinterval() == pytest.approx(0.00002)
    sys.setswitchinterval(USUAL)


def test_an_interval_that_the_program_sets_meanwhile_stays():
    with short_switch_interval():
        sys.setswitchinterval(0.001)
    assert sys.getswitchinterval() == pytest.approx(0.001)
    sys.setswitchinterval(USUAL)


def test_it_is_short_until_the_last_thread_leaves():
    inside, go = threading.Event(), threading.Event()

    def other():
        with short_switch_interval():
            inside.set()
            go.wait(30)

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait(30)
    with short_switch_interval():
        pass
    assert sys.getswitchinterval() == SHORT
    go.set()
    thread.join()


def test_an_error_leaves_it_as_before():
    with pytest.raises(KeyError), short_switch_interval():
        raise KeyError


@fprobe.native
def count(fp, ip, ret_ip, regs, data):
    return 0


def in_child(check):
    child = os.fork()
    if not child:
        os._exit(0 if check() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@isolated(timeout=30)
def test_the_child_of_a_fork_does_not_wait_for_threads_of_its_parent():
    sys.setswitchinterval(USUAL)
    inside, go = threading.Event(), threading.Event()

    def other():
        with short_switch_interval():
            inside.set()
            go.wait(30)

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait(30)
    assert in_child(lambda: abs(sys.getswitchinterval() - USUAL) < 1e-6)
    go.set()
    thread.join()
    with short_switch_interval():
        assert in_child(lambda: abs(sys.getswitchinterval() - 0.0001) < 1e-6)


@isolated(timeout=60)
def test_finding_functions_of_libraries_and_linking_handlers_is_within_it():
    ctypes.CDLL("libz.so.1")
    seen = []
    locate, link = registration.locate, native_handler.link
    registration.locate = lambda pattern: (seen.append(sys.getswitchinterval()), locate(pattern))[1]
    native_handler.link = lambda *linked: (seen.append(sys.getswitchinterval()), link(*linked))[1]
    pattern = fprobe.fprobe(entry_handler=count)
    fprobe.register_fprobe(pattern, "libz:adler32")
    fprobe.unregister_fprobe(pattern)
    attached = fprobe.attach("libz:adler32", action=fprobe.Count())
    prepare = attached.fp.prepare
    attached.fp.prepare = lambda count: (seen.append(sys.getswitchinterval()), prepare(count))
    attached.attach().detach()
    assert seen == [SHORT] * 4
    before = sys.getswitchinterval()
    with kprobes.attach("libz:crc32", action=kprobes.Count()):
        assert sys.getswitchinterval() == pytest.approx(before)
