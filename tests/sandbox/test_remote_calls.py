"""System calls that a stop interrupts: they are made again, and never end early, unless a signal has come."""

from __future__ import annotations

import errno
import json
import mmap
import os
import signal
import subprocess
import sys
import time

import pytest
from sampled import in_stress

from sandbox.remote import inject
from sandbox.remote.process import RemoteProcess
from sandbox.remote.ptrace import SEIZE, StoppedThread, ptrace
from sandbox.remote.sleeping import Sleep

TIMEOUT = 400
LOOP = """
import ctypes, json, os, signal, sys, time
libc = ctypes.CDLL(None, use_errno=True)
poll, events = libc.epoll_create1(0), ctypes.create_string_buffer(120)
if {handler}:
    signal.signal(signal.SIGUSR1, lambda *_: None)
class Timespec(ctypes.Structure):
    _fields_ = [("s", ctypes.c_long), ("ns", ctypes.c_long)]
mask, info = (ctypes.c_ulong * 16)(1 << 9), ctypes.create_string_buffer(128)
def epoll_wait():
    return libc.epoll_wait(poll, events, 8, {timeout})
def epoll_pwait():
    return libc.epoll_pwait(poll, events, 8, {timeout}, None)
def nanosleep():
    return libc.usleep({timeout} * 1000)
def poll_():
    return libc.poll(None, 0, {timeout})
print("ready", flush=True)
while True:
    start = time.monotonic()
    found = {kind}()
    print(json.dumps([found, ctypes.get_errno() if found else 0, (time.monotonic() - start) * 1000]), flush=True)
"""


class Loop:
    """A process with one thread, which waits again and again and prints what came of it."""

    def __init__(self, kind, handler=False):
        source = LOOP.format(kind=kind, timeout=TIMEOUT, handler=handler)
        self.process = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "ready\n"
        self.pid = self.process.pid

    def next(self):
        return json.loads(self.process.stdout.readline())

    def end(self):
        self.process.kill()
        self.process.communicate()


@pytest.mark.parametrize("kind", ["epoll_wait", in_stress("epoll_pwait"), in_stress("nanosleep"), "poll_"])
def test_a_wait_goes_on_for_the_rest_of_its_time(kind):
    loop = Loop(kind)
    try:
        for part in (0.1, 0.5):
            loop.next()
            time.sleep(TIMEOUT / 1000 * part)
            pidfd = os.pidfd_open(loop.pid)
            inject.start(inject.prepare(loop.pid, "pass"), pidfd).close()
            os.close(pidfd)
            result, number, took = loop.next()
            assert (result, number) == (0, 0), os.strerror(number)
            assert took > TIMEOUT - 20, f"stopped after {part:.0%} of its time, it ended early"
    finally:
        loop.end()


def test_a_sleep_that_was_seen_before_is_not_repeated():
    """Without what was seen it would wait for its whole time again."""
    loop = Loop("epoll_wait")
    try:
        loop.next()
        time.sleep(0.05)
        process, sleep = RemoteProcess(loop.pid), Sleep(loop.pid)
        time.sleep(TIMEOUT / 2000)
        with StoppedThread(loop.pid, process.system_call, sleep) as thread:
            left = thread.registers.r10
        assert loop.next()[:2] == [0, 0] and left <= TIMEOUT / 2
        process.close()
    finally:
        loop.end()


def test_a_signal_that_comes_during_the_stop_ends_the_wait():
    loop = Loop("epoll_wait", handler=True)
    try:
        loop.next()
        time.sleep(0.1)
        process = RemoteProcess(loop.pid)
        with StoppedThread(loop.pid, process.system_call):
            os.kill(loop.pid, signal.SIGUSR1)
        result, number, took = loop.next()
        assert (result, os.strerror(number)) == (-1, "Interrupted system call") and took < TIMEOUT - 100
        process.close()
    finally:
        loop.end()


class Starved(StoppedThread):
    """A thread that does not get to run within 100 ms the first times."""

    tries = mmap.mmap(-1, mmap.PAGESIZE)
    """Shared with the processes that try."""

    def __enter__(self):
        self.tries[0] += 1
        if self.tries[0] > 3:
            return super().__enter__()
        ptrace(SEIZE, self.thread)
        raise OSError(errno.EBUSY, f"thread {self.thread} did not stop within 0.1 s")


def test_a_process_that_gets_no_processor_for_a_while_is_tried_again(monkeypatch):
    monkeypatch.setattr(inject, "StoppedThread", Starved)
    loop = Loop("nanosleep")
    try:
        inject.start(inject.prepare(loop.pid, "print('[1]', flush=True)"), os.pidfd_open(loop.pid)).close()
        assert [1] in [loop.next() for _ in range(10)]
    finally:
        loop.end()


def test_what_takes_long_is_known_before_a_thread_stands(monkeypatch):
    """Such as where instructions are in the C library's text: it has a megabyte."""
    sizes, real = [], RemoteProcess.read
    loop = Loop("nanosleep")
    try:
        prepared, pidfd = inject.prepare(loop.pid, "pass"), os.pidfd_open(loop.pid)
        monkeypatch.setattr(inject, "_answered", inject._tried)
        monkeypatch.setattr(RemoteProcess, "read", lambda self, at, size: [sizes.append(size), real(self, at, size)][1])
        inject.start(prepared, pidfd).close()
        os.close(pidfd)
        assert sizes and max(sizes) <= mmap.PAGESIZE
    finally:
        loop.end()
