"""Threads that block SIGTRAP, which a breakpoint would kill."""

from __future__ import annotations

from isolation import isolated


@isolated
def test_a_thread_that_nobody_knows_and_that_keeps_sigtrap_blocked_is_waited_for_once():
    import faulthandler
    import logging
    import signal
    import time
    from unittest import mock

    from ftrace.core.runtime import runtime
    from ftrace.core.sites import trapping
    from ftrace.core.sites.trapping import refuse_blocked_traps
    from sandbox.threads.blocked_signals import threads_blocking

    logged, slept = [], []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())
    logging.getLogger("ftrace").addHandler(handler)
    logging.getLogger("ftrace").setLevel(logging.INFO)
    pause = time.sleep

    def sleep(seconds):
        slept.append(seconds)
        pause(seconds)

    faulthandler.dump_traceback_later(100)
    while not threads_blocking(runtime().image, signal.SIGTRAP):  # its thread has not begun
        pause(0.001)
    sleeping = mock.patch.object(
        trapping, "_running", lambda _tid: (0, True)
    )  # on a busy machine it may not have begun to
    with sleeping, mock.patch("time.sleep", sleep):
        refuse_blocked_traps(runtime())
        waited = len(slept)
        for _ in range(5):
            refuse_blocked_traps(runtime())
        faulthandler.cancel_dump_traceback_later()
        refuse_blocked_traps(runtime())
    assert (waited, len(slept), len(logged)) == (20, 20, 1)


@isolated
def test_a_thread_that_waits_for_the_processor_is_waited_for():
    """As one that starts on a busy machine. Here it sleeps, and is said not to."""
    import signal
    import threading
    import time
    from unittest import mock

    from ftrace.core.runtime import runtime
    from ftrace.core.sites import trapping

    blocked = threading.Event()

    def run():
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTRAP])
        blocked.set()
        time.sleep(0.2)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTRAP])
        time.sleep(0.2)

    thread = threading.Thread(target=run)
    thread.start()
    blocked.wait(30)
    with mock.patch.object(trapping, "_running", lambda _tid: (0, False)):
        trapping.refuse_blocked_traps(runtime())
    thread.join()


@isolated
def test_a_probe_that_cannot_be_removed_now_says_so_and_stays():
    import signal
    import threading

    import pytest

    import fprobe
    from ftrace.core.runtime import runtime
    from ftrace.core.sites.trapping import TrapsBlocked

    runtime().force_breakpoints = True
    probe = fprobe.attach("libz:crc32", action=fprobe.Count()).attach()
    blocked, over = threading.Event(), threading.Event()

    def run():
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTRAP])
        blocked.set()
        over.wait(30)

    thread = threading.Thread(target=run)
    thread.start()
    blocked.wait(30)
    with pytest.raises(TrapsBlocked, match="SIGTRAP is blocked in"):
        probe.detach()
    assert probe.fp.registered
    over.set()
    thread.join()
    probe.detach()
    assert not probe.fp.registered
