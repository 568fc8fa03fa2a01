"""What isolated tests rely on: one that is interrupted has no part in the next."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading

import pytest
from isolation import TESTS, parent_of_company, run_forked
from zygote import Company, patience


class Interrupted(Exception):
    pass


def _interrupt(number, frame):
    raise Interrupted


@pytest.mark.stress
def test_after_an_interruption_the_next_gets_its_own_answer():
    """As pytest's time limit interrupts."""
    assert run_forked("pass", 30).returncode == 0
    before = signal.signal(signal.SIGUSR1, _interrupt)
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1))
    try:
        timer.start()
        with pytest.raises(Interrupted):
            run_forked("import time; time.sleep(30)", 30)
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
    done = run_forked("print('next')", 30)
    assert (done.returncode, done.stdout) == (0, "next\n")


def test_time_limits_are_longer_on_a_busy_machine(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    for load, limit in ((0.1, 30), (2, 30), (5, 75), (60, 120)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0, 0))
        assert patience(30) == limit
    done = run_forked("import time; time.sleep(1.5)", 0.5)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("last", "status", "torn_down"), [("", 0, False), ("sys.exit(3)", 3, False), ("sys.exit()", 0, True)]
)
def test_the_end_leaves_out_nothing_but_the_clearing_of_modules(last, status, torn_down):
    """Threads are waited for; what is registered for the end runs, Python's and the C library's, whose output is flushed."""
    source = f"""
import atexit, ctypes, sys, threading, time
names = {{}}
exec("class Cleared:\\n    def __del__(self): print('cleared')", names)
kept = names.pop("Cleared")()
threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
atexit.register(print, "registered")
ctypes.CDLL(None).puts(b"from C")
{last}
"""
    done = run_forked(source, 30)
    printed = sorted(["thread", "registered", "from C", *["cleared"] * torn_down])
    assert (done.returncode, sorted(done.stdout.split("\n"))) == (status, ["", *printed])


@pytest.fixture
def company():
    made = Company(parent_of_company())
    yield made
    assert made.end().returncode == 0


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("import signal; signal.signal(signal.SIGUSR1, print)", "handler of signal 10"),
        ("import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])", "blocked signals"),
        ("import resource; resource.setrlimit(resource.RLIMIT_NPROC, (9999, 9999))", "RLIMIT_NPROC"),
        ("import os; os.chdir('/')", "working directory"),
        ("import os; os.environ['LEFT'] = '1'", "$LEFT"),
    ],
)
def test_one_that_shares_its_child_leaves_the_process_as_it_was(company, source, what):
    done = company.run(source, 30)
    assert done.returncode == 1
    assert f"the test has changed its process: it needs one of its own, by @isolated alone\n  {what}: " in done.stderr


def test_one_that_shares_its_child_leaves_nothing_in_the_maps_of_tests(company):
    """Nor handlers of the packages' loggers."""
    source = f"import sys; sys.path.insert(0, {str(TESTS / 'fprobe')!r})\n"
    source += """
import logging, fprobe, native_probes, programs
log = logging.getLogger("fprobe")
assert (native_probes.cells[1], log.handlers) == (0, [])
module = programs.basic()
with fprobe.attach("leaf", entry=native_probes.count_all):
    module["leaf"](1)
assert native_probes.cells[1] == 2
log.addHandler(logging.NullHandler())
"""
    for _ in range(2):
        done = company.run(source, 30)
        assert done.returncode == 0, done.stderr


def test_one_that_shares_its_child_leaves_the_next_neither_program_nor_probe(company):
    """Its output, its failure and its names are its own."""
    leaves = (
        "import os, fprobe, programs\nmodule = programs.basic()\nfprobe.attach('leaf').attach()\nprint(os.getpid())"
    )
    finds = (
        "import os, sandbox.loading.module as loaded, ftrace.core.tracer\n"
        "assert 'module' not in globals()\n"
        "print(os.getpid(), loaded.modules(), [*ftrace.core.tracer.tracer().enabled])"
    )
    first, failed, last = (company.run(source, 30) for source in (leaves, "assert 1 > 2, 'as it must'", finds))
    assert (first.returncode, failed.returncode, last.returncode) == (0, 1, 0)
    assert "as it must" in failed.stderr and "1 tests had run" in failed.stderr
    assert last.stdout == f"{first.stdout.strip()} [] []\n"


@pytest.mark.parametrize(
    ("source", "status"), [("import os; os._exit(3)", 3), ("import os; os.abort()", -signal.SIGABRT)]
)
def test_one_that_ends_its_child_has_that_childs_status(company, source, status):
    assert company.run("pass", 30).returncode == 0
    assert company.run(source, 30).returncode == status
    assert not company.lives


def test_one_that_does_not_end_is_ended_with_its_child(company):
    done = company.run("import time; time.sleep(30)", 0.2)
    assert done.returncode == -signal.SIGABRT and not company.lives


@pytest.mark.stress
def test_a_worker_that_dies_ends_the_run_as_failed_though_its_child_lives(tmp_path):
    """As the options of pyproject.toml and the conftest have it."""
    (tmp_path / "conftest.py").write_text(
        f"import sys\nsys.path.insert(0, {str(TESTS)!r})\nimport process_state\n"
        "def pytest_configure(config): process_state.keep_pipes_from_children()\n"
    )
    (tmp_path / "test_dies.py").write_text(
        "import os, time\n"
        "def test_forks():\n    child = os.fork()\n    if not child: time.sleep(600)\n"
        f"    open({str(tmp_path / 'child')!r}, 'w').write(str(child))\n"
        "def test_dies(): os.abort()\ndef test_later(): pass\n"
    )
    options = ["-c", str(TESTS.parent / "pyproject.toml"), "--rootdir", str(tmp_path), "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, "-n", "2", "--dist", "loadfile", str(tmp_path)]
    try:
        with (tmp_path / "out").open("w") as out:  # a file, for the child that lives has it, too
            status = subprocess.run(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, timeout=60).returncode
    finally:
        os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)
    said = (tmp_path / "out").read_text()
    assert status and "crashed while running 'test_dies.py::test_dies'" in said and "1 failed" in said, said


def test_trace_cmd_runs_only_where_it_cannot_mount_the_machines_tracefs():
    """No other module of the tests has it as a command's word."""
    word = re.compile(r"""["']trace-cmd["']|trace-cmd (report|list|record|stat|stream|start|stop|reset|show)\b""")
    found = [path for path in TESTS.rglob("*.py") if word.search(path.read_text())]
    assert {path.name for path in found} <= {"trace_cmd.py", "test_trace_cmd.py", "test_isolation.py"}
