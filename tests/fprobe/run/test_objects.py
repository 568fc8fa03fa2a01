"""Compiled code is made by the attacher and sent: the target compiles nothing, and uses no cache of its own."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from attaching import TARGET, Target
from isolation import isolated

from fprobe.run import session
from fprobe.run.launcher import attached as launcher
from fprobe.run.launcher import objects
from fprobe.run.launcher.attached import Attached
from fprobe.run.session import Settings
from sandbox.native.back.compile import state_of_files

VERSIONS = sorted(Path("~/.pyenv/versions").expanduser().glob("3.1[0-3].*/bin/python"))
OTHER = next((python for python in VERSIONS if f"3.{sys.version_info.minor}." not in str(python)), None)
COUNTED = Settings(("libz:*",), children=False)
WAITS = Settings(("libz:*", "library-that-comes-later:*"), children=False)
RETURNS = Settings(events=("r:packed libz:deflate result=$retval:s32",), children=False)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The directory of an empty cache of this process."""
    time.sleep(1.1)  # files that have just been changed are not known by their times
    monkeypatch.setenv("FPROBE_CACHE_DIR", str(tmp_path / "own"))
    return tmp_path / "own"


@pytest.fixture
def theirs(tmp_path):
    """Of the target."""
    return tmp_path / "theirs"


def started(python, cache):
    made = Target.__new__(Target)
    environment = {**os.environ, "FPROBE_CACHE_DIR": str(cache)}
    made.process = subprocess.Popen(
        [python, TARGET], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    made.pid = made.process.pid
    assert made.process.stdout.readline() == "ready\n"
    return made


def compiled(pid, settings):
    """How much was compiled in the target."""
    attached = Attached(pid, settings)
    try:
        attached.detach()
        entries = list(session.entries(attached.journal))
        assert not [entry["error"] for entry in entries if "error" in entry]
        return next(entry["compiled"] for entry in entries if "compiled" in entry)
    finally:
        attached.close()


@pytest.mark.stress
@isolated
def test_nothing_is_compiled_for_events_where_there_was_an_fprobe_since_the_last(directory):
    made = started(sys.executable, Path(directory) / "theirs")
    events = Settings(events=("p:x libz:deflate", "r:y libz:deflate $retval", "f:z libz:deflateEnd"), children=False)
    alone = [Settings(events=(text,), children=False) for text in events.events]
    try:
        assert [compiled(made.pid, each) for each in (events, COUNTED, *alone, events)] == [0] * 6
    finally:
        made.end()


def check(theirs):
    made = started(sys.executable, theirs)
    try:
        assert [compiled(made.pid, settings) for settings in (COUNTED, WAITS, RETURNS, RETURNS)] == [0, 0, 0, 0]
    finally:
        made.end()
    assert not list(theirs.glob("*.bin"))


@pytest.fixture
def directory(tmp_path):
    return str(tmp_path)


@pytest.mark.stress
@isolated  # as a command attaches: what earlier tests have left in this process must not tell which objects are sent
def test_nothing_is_compiled_in_the_target(directory):
    check(Path(directory) / "theirs")


@pytest.mark.stress
@isolated
def test_nothing_is_compiled_in_the_target_though_our_files_have_changed(directory):
    launcher.state_of_files = lambda: state_of_files()._replace(settled="")
    made = started(sys.executable, Path(directory) / "theirs")
    try:
        assert compiled(made.pid, COUNTED) == 0
    finally:
        made.end()


@pytest.mark.stress
def test_nothing_is_compiled_in_the_target_though_the_attachers_cache_is_empty(own, theirs):
    for _ in range(2):  # with a cold cache, and a new process with a warm one
        check(theirs)
    assert list(own.glob("*.bin"))


@pytest.mark.skipif(OTHER is None, reason="no other version of Python")
@pytest.mark.stress
def test_nothing_is_compiled_in_a_target_of_another_version(own, theirs):
    made = started(OTHER, theirs)
    try:
        assert compiled(made.pid, COUNTED) == 0
    finally:
        made.end()


@pytest.mark.stress
def test_a_rehearsal_ends_with_a_killed_command(own, target):
    command = subprocess.Popen([sys.executable, "-m", "fprobe.cli", "stat", "-p", str(target.pid), "libz:*"])
    children = Path(f"/proc/{command.pid}/task/{command.pid}/children")
    while not (found := children.read_text().split()) or not list(own.glob("*.bin")):
        assert command.poll() is None
        time.sleep(0.005)
    rehearsal = os.pidfd_open(int(found[0]))
    signal.pidfd_send_signal(rehearsal, signal.SIGSTOP)
    made = len(list(own.glob("*.bin")))
    command.kill()
    command.wait()
    signal.pidfd_send_signal(rehearsal, signal.SIGCONT)
    assert select.select([rehearsal], [], [], 60)[0]
    os.close(rehearsal)
    assert len(list(own.glob("*.bin"))) == made


def test_a_compilation_whose_starter_has_ended_ends():
    given = {"origin": "x", "is_text": True, "flavour": "patchable", "opt": 0, "notrace": [], "parent": 1}
    words = [sys.executable, "-c", "from sandbox.loading.trial_link import main; main()", json.dumps(given)]
    assert subprocess.run(words, input=b"").returncode == -signal.SIGKILL


def test_a_program_of_another_user_is_not_run(monkeypatch, target):
    """It would be run with this process's rights."""
    started = []
    monkeypatch.setattr(objects.subprocess, "run", lambda command, **_: started.append(command[0]))
    monkeypatch.setattr(objects.os, "geteuid", lambda: os.getuid() + 1)
    assert objects._rehearsed(target.pid, sys.version_info.minor + 1, "", (), COUNTED) == [] and not started


def test_a_program_that_has_a_python_within_is_not_run(monkeypatch):
    """It would begin anew, beside the one that runs."""
    started = []
    monkeypatch.setattr(objects.subprocess, "run", lambda command, **_: started.append(command[0]))
    process = subprocess.Popen(["/bin/sleep", "60"])
    try:
        assert objects._rehearsed(process.pid, sys.version_info.minor + 1, "", (), COUNTED) == [] and not started
    finally:
        process.kill()
        process.wait()
