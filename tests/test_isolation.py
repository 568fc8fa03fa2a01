"""What isolated tests rely on: one that is interrupted has no part in the next."""

from __future__ import annotations

import os
import signal
import threading

import pytest
from isolation import SHARED, run_forked, zygote_with
from zygote import Company


class Interrupted(Exception):
    pass


def _interrupt(number, frame):
    raise Interrupted


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
    made = Company(zygote_with(SHARED))
    yield made
    assert made.end().returncode == 0


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
