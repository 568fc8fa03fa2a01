"""Threads that block SIGTRAP, which a breakpoint would kill."""

from __future__ import annotations

from isolation import isolated


@isolated
def test_a_thread_that_nobody_knows_and_that_keeps_sigtrap_blocked_is_waited_for_once():
    import faulthandler
    import logging
    import time
    from unittest import mock

    from ftrace.core.runtime import runtime
    from ftrace.core.sites.trapping import refuse_blocked_traps

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
    with mock.patch("time.sleep", sleep):
        refuse_blocked_traps(runtime())
        waited = len(slept)
        for _ in range(5):
            refuse_blocked_traps(runtime())
        faulthandler.cancel_dump_traceback_later()
        refuse_blocked_traps(runtime())
    assert (waited, len(slept), len(logged)) == (20, 20, 1)
