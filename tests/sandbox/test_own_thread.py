"""Threads of ours in a process that is not ours."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest
from isolation import isolated

from sandbox.threads.own_thread import OwnThread


def blocked(task):
    line = next(line for line in Path(f"/proc/self/task/{task}/status").read_text().splitlines() if "SigBlk" in line)
    mask = int(line.split()[1], 16)
    return {number for number in range(1, 32) if mask >> (number - 1) & 1}


def test_it_blocks_the_signals_to_the_process_but_those_of_its_own_doing():
    seen, before = [], signal.pthread_sigmask(signal.SIG_BLOCK, ())
    OwnThread(lambda: seen.append(blocked(threading.get_native_id()))).join()
    synchronous = {signal.SIGTRAP, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSYS}
    assert seen == [set(range(1, 32)) - synchronous - {signal.SIGKILL, signal.SIGSTOP}]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_threading_does_not_list_it():
    go, listed = threading.Event(), threading.enumerate()
    thread = OwnThread(go.wait)
    assert (thread.is_alive, threading.enumerate()) == (True, listed)
    go.set()
    thread.join()
    assert not thread.is_alive


def test_only_the_thread_itself_is_running_it():
    seen, made = [], []
    go = threading.Event()
    made.append(OwnThread(lambda: go.wait() and seen.append(made[0].is_running)))
    assert not made[0].is_running
    go.set()
    made[0].join()
    assert seen == [True]


@isolated
def test_the_child_of_a_fork_has_none_and_does_not_wait_for_it():
    go = threading.Event()
    thread = OwnThread(go.wait)
    child = os.fork()
    if not child:
        alive = thread.is_alive
        thread.join()
        os._exit(alive)
    assert os.waitpid(child, 0) == (child, 0)
    go.set()
    thread.join()


@isolated
def test_an_exception_of_a_signal_handler_leaves_no_signal_blocked():
    """Python runs the handlers of pending signals within pthread_sigmask()."""

    def interrupt(number, frame):
        raise KeyboardInterrupt

    signal.signal(signal.SIGUSR1, interrupt)
    real, before = signal.pthread_sigmask, signal.pthread_sigmask(signal.SIG_BLOCK, ())

    def pending(how, mask):
        result = real(how, mask)
        if how == signal.SIG_BLOCK and mask:
            interrupt(signal.SIGUSR1, sys._getframe())
        return result

    signal.pthread_sigmask = pending
    with pytest.raises(KeyboardInterrupt):
        OwnThread(lambda: None)
    assert real(signal.SIG_BLOCK, ()) == before
