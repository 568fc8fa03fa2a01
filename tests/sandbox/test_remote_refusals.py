"""Processes in which code cannot be run: each is named with the reason, from files of /proc as the kernel writes them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sandbox.remote import refusals
from sandbox.remote.inject import prepare, start
from sandbox.remote.refusals import Refused, check, not_permitted

STATUS = {"Name": "python3", "Tgid": "7", "State": "S (sleeping)", "VmSize": "1 kB", "TracerPid": "0", "Seccomp": "0"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"Tgid": "5"}, "7 is a thread of process 5; give 5"),
        ({"State": "Z (zombie)"}, "has ended and waits for its parent"),
        ({"State": "T (stopped)"}, "is stopped; continue it first: kill -CONT 7"),
        ({"State": "t (tracing stop)"}, "is stopped by a debugger"),
        ({"Kthread": "1"}, "is a thread of the kernel"),
        ({"VmSize": None}, "is a thread of the kernel"),
        ({"TracerPid": "9"}, "is traced by process 9"),
        ({"Seccomp": "1"}, "has restricted its system calls"),
        ({"Seccomp": "2", "Seccomp_filters": "3"}, "has restricted its system calls"),
    ],
)
def test_a_state_in_which_a_process_cannot_be_attached_to_is_named(monkeypatch, changed, said):
    status = {name: value for name, value in {**STATUS, **changed}.items() if value is not None}
    own = {**STATUS, "Seccomp": "2", "Seccomp_filters": "2"}
    monkeypatch.setattr(refusals, "read_status", lambda pid: own if pid == os.getpid() else status)
    with pytest.raises(Refused, match=said):
        check(7)


def test_filters_of_system_calls_that_this_process_has_too_are_no_obstacle(monkeypatch):
    status = {**STATUS, "Seccomp": "2", "Seccomp_filters": "1"}
    monkeypatch.setattr(refusals, "read_status", lambda _: status)
    monkeypatch.setattr(refusals, "_check_machine", lambda _: None)
    check(7)


@pytest.mark.parametrize(
    ("owner", "user", "scope", "said"),
    [
        (1000, 1001, 0, "belongs to user 1000; run fprobe as that user or as root"),
        (0, 1001, 0, "belongs to user 0"),
        (1000, 1000, 1, "sudo sysctl kernel.yama.ptrace_scope=0"),
        (1000, 1000, 2, "CAP_SYS_PTRACE only"),
        (1000, 0, 3, "until the next boot"),
        (1000, 1000, 0, "no longer dumpable"),
    ],
)
def test_the_reason_why_a_process_may_not_be_traced_is_named(monkeypatch, owner, user, scope, said):
    monkeypatch.setattr(refusals, "_owner", lambda _: owner)
    monkeypatch.setattr(refusals, "_ptrace_scope", lambda: scope)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert said in str(not_permitted(7).strerror)


def test_a_program_for_32_bits_is_refused(tmp_path, monkeypatch):
    (tmp_path / "program").write_bytes(b"\x7fELF\x01" + bytes(13) + (3).to_bytes(2, "little"))
    monkeypatch.setattr(refusals, "Path", lambda _: tmp_path / "program")
    with pytest.raises(Refused, match="32-bit"):
        refusals._check_machine(7)


def test_this_process_is_refused_and_one_that_has_ended():
    with pytest.raises(Refused, match="is this one"):
        check(os.getpid())
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with pytest.raises(Refused, match="there is no process"):
        check(ended.pid)


def test_a_process_that_ends_after_it_was_looked_at_has_ended():
    command = [sys.executable, "-S", "-c", "import time; print(flush=True); time.sleep(100)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as sleeper:
        assert sleeper.stdout is not None
        sleeper.stdout.readline()
        prepared, pidfd = prepare(sleeper.pid, "pass"), os.pidfd_open(sleeper.pid)
        sleeper.kill()
    with pytest.raises(Refused, match="has ended, or has executed another program"):
        start(prepared, pidfd)
    prepared.process.close()
    os.close(pidfd)
