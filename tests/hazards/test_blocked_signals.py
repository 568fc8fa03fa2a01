"""HAZARDS 2: which threads block a signal is known before breakpoints are armed."""

from __future__ import annotations

import pytest
from isolation import isolated


@pytest.mark.parametrize("count", [1, 40])
@isolated
def test_the_threads_that_block_a_signal_are_found(count):
    import signal
    import threading
    import time

    from ftrace.core.runtime import runtime
    from sandbox.threads.blocked_signals import threads_blocking

    ready, over = threading.Barrier(2 * count + 1), threading.Event()
    blocking = []

    def run(blocks):
        if blocks:
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTRAP, signal.SIGRTMAX])
            blocking.append(threading.get_native_id())
        ready.wait(30)
        over.wait(30)

    threads = [threading.Thread(target=run, args=(number % 2,)) for number in range(2 * count)]
    for thread in threads:
        thread.start()
    ready.wait(30)
    image = runtime().image
    assert sorted(threads_blocking(image, signal.SIGTRAP)) == sorted(blocking) and len(blocking) == count
    assert sorted(threads_blocking(image, signal.SIGRTMAX)) == sorted(blocking)
    assert threads_blocking(image, signal.SIGUSR1) == []
    over.set()
    for thread in threads:
        thread.join()
    deadline = time.monotonic() + 30
    while threads_blocking(image, signal.SIGTRAP) and time.monotonic() < deadline:
        time.sleep(0.001)  # a thread that ends blocks every signal, and is joined before it is gone
    assert threads_blocking(image, signal.SIGTRAP) == []
