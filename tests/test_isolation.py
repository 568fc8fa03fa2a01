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
