"""What isolated tests rely on: one that is interrupted has no part in the next."""

from __future__ import annotations

import os
import signal
import threading

import pytest
from isolation import run_forked


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
