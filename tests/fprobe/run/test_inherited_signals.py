"""`fprobe run` started with signals ignored or blocked, as by nohup, or by a shell in the background of a script."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

import pytest
from sampled import sampled

HANDLES = """
import signal, sys
def handle(number, frame):
    print("handled", flush=True)
    sys.exit(3)
signal.signal({number}, handle)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [{number}])
print("ready", flush=True)
while True:
    signal.pause()
"""
IGNORES = """
import os
print("ready", flush=True)
os.read(0, 1)
print("goes on", flush=True)
"""
STARTED = {
    "ignored": "signal.signal({number}, signal.SIG_IGN)",
    "blocked": "signal.pthread_sigmask(signal.SIG_BLOCK, [{number}])",
}


def start(setting, number, source, tmp_path, *options):
    """The launcher, with a signal ignored or blocked in a new session, after its program has printed that it is ready."""
    ours = [sys.executable, "-m", "fprobe.cli", "run", *options, "-o", str(tmp_path / "report"), "-c", source]
    before = STARTED[setting].format(number=int(number))
    outer = f"import os, signal, sys; {before}; os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-c", outer, *ours]
    job = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert job.stdout.readline() == "ready\n", job.communicate()
    return job


def ended(job, text=""):
    """Its standard output, standard error and exit code."""
    try:
        return *job.communicate(text, timeout=20), job.returncode
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "number", sampled([signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGTSTP], 1)
)
@pytest.mark.parametrize("setting", sampled(STARTED, 1))
def test_an_inherited_signal_that_the_program_handles_reaches_it(setting, number, tmp_path):
    source = HANDLES.format(number=int(number))
    job = start(setting, number, source, tmp_path, "--stat", "libz:deflate")
    job.send_signal(number)
    out, _, code = ended(job)
    assert (out, code) == ("handled\n", 3)


@pytest.mark.stress
@pytest.mark.parametrize("setting", sampled(STARTED, 1))
def test_an_inherited_signal_that_the_program_does_not_handle_ends_nobody(setting, tmp_path):
    job = start(setting, signal.SIGHUP, IGNORES, tmp_path, "--stat", "libz:deflate")
    job.send_signal(signal.SIGHUP)
    out, _, code = ended(job, "x")
    assert (out, code) == ("goes on\n", 0)
    assert (tmp_path / "report").read_text()


@pytest.mark.stress
def test_sigchld_ignored_by_the_parent_leaves_the_exit_status(tmp_path):
    source = "import signal, sys; print('ready', flush=True); sys.exit(5 + (signal.getsignal(17) is signal.SIG_IGN))"
    job = start("ignored", signal.SIGCHLD, source, tmp_path, "--stat", "libz:deflate")
    assert ended(job) == ("", "", 6)
