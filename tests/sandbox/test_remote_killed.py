"""The process that stops a thread of another one is killed before each of its requests: the thread continues unharmed."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sampled import in_stress, sampled

from sandbox.remote import inject, ptrace
from sandbox.remote.process import RemoteProcess
from sandbox.remote.refusals import Refused

LIMIT = 20
LOOP = """
import hashlib, select, signal, sys, time
data = bytes(range(256)) * 2000
def hash():
    assert hashlib.sha256(data).hexdigest() == expected
    return hashlib.md5(data).hexdigest() == other
expected, other = hashlib.sha256(data).hexdigest(), hashlib.md5(data).hexdigest()
def sleep():
    end = time.monotonic() + 0.005
    time.sleep(0.005)
    return time.monotonic() >= end
epoll = select.epoll()
def wait():
    return epoll.poll(0.005) == []
def ask():
    return True
alarms = []
def alarmed():
    return hash()
if {kind!r} == "alarmed":
    signal.signal(signal.SIGALRM, lambda *_: alarms.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
print("ready", flush=True)
poll = select.poll()
poll.register(0, select.POLLIN)
while True:
    assert {kind}()
    if poll.poll(0 if {kind!r} != "ask" else None):
        sys.stdin.readline()
        before = len(alarms)
        if {kind!r} == "alarmed":
            end = time.monotonic() + 5
            while len(alarms) == before and time.monotonic() < end:
                hash()
            assert len(alarms) > before
        print(getattr(sys, "injected", 0), flush=True)
"""


class Target:
    """A process with one thread, which does one thing again and again and checks the result."""

    def __init__(self, kind):
        source = LOOP.format(kind=kind)
        self.process = subprocess.Popen(
            [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout.readline() == "ready\n"
        self.pid = self.process.pid

    def ask(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert select.select([self.process.stdout], [], [], LIMIT)[0], "it does not answer"
        return int(self.process.stdout.readline())

    @property
    def blocked(self):
        text = Path(f"/proc/{self.pid}/task/{self.pid}/status").read_text()
        return text.partition("\nSigBlk:")[2].split()[0]

    def end(self):
        self.process.kill()
        self.process.communicate()


@pytest.mark.parametrize(
    ("kind", "stack"),
    sampled([*((kind, True) for kind in ("hash", "sleep", "wait", "ask", "alarmed")), ("hash", False)], 1),
)
@pytest.mark.parametrize("every", [4, in_stress(1)])
def test_a_tracer_that_is_killed_leaves_a_thread_that_continues(kind, stack, every, monkeypatch):
    """Before each request, or `every` fourth. `stack`: whether the way back is there, or in memory that nothing uses."""
    target, real = Target(kind), ptrace.ptrace
    if not stack:
        monkeypatch.setattr(RemoteProcess, "is_stack", lambda *_: False)
    pidfd, blocked = os.pidfd_open(target.pid), target.blocked
    requests = 0
    try:
        for last in range(1, 100, every):
            requests = 0

            def counted(*arguments, last=last):
                nonlocal requests
                requests += 1
                if requests == last:
                    os.kill(os.getpid(), signal.SIGKILL)
                real(*arguments)

            monkeypatch.setattr(ptrace, "ptrace", counted)
            prepared = inject.prepare(target.pid, "import sys; sys.injected = getattr(sys, 'injected', 0) + 1")
            try:
                inject.start(prepared, pidfd).close()
            except Refused as refused:
                assert "was ended; the process goes on" in refused.strerror
                assert target.ask() >= 0 and target.blocked == blocked, f"killed before request {last}"
                prepared.process.close()
            else:
                break
        assert 20 < last < 99, "it was killed before every request"
        end = time.monotonic() + LIMIT
        while not target.ask() and time.monotonic() < end:
            time.sleep(0.01)
        assert target.ask() > 0 and target.blocked == blocked
    finally:
        os.close(pidfd)
        target.end()


def test_memory_that_changes_meanwhile_is_named(monkeypatch):
    target, real = Target("ask"), inject._WayBack
    pidfd = os.pidfd_open(target.pid)

    def in_no_memory(prepared, stopped):
        prepared.process.read(1 << 20, 8)
        return real(prepared, stopped)

    try:
        prepared = inject.prepare(target.pid, "pass")
        monkeypatch.setattr(inject, "_WayBack", in_no_memory)
        with pytest.raises(Refused, match=f"^.Errno 14. process {target.pid} has changed its memory while"):
            inject.start(prepared, pidfd)
        assert target.ask() == 0
        prepared.process.close()
    finally:
        os.close(pidfd)
        target.end()
