"""Whether another thread has ended, told natively."""

from __future__ import annotations

import os
import threading
from functools import cache
from pathlib import Path

from sandbox.native import Unit, native, u64
from sandbox.native.native_image import NativeImage
from sandbox.threads.blocked_sp import ENDED, blocked_sp


@native
def ended(tid: u64) -> u64:
    return u64(1) if blocked_sp(tid) == ENDED else u64(0)


@cache
def image():
    return NativeImage.of(Unit("ended-threads", (ended,), bounded=False))


def test_a_thread_ends():
    is_over = threading.Event()
    thread = threading.Thread(target=is_over.wait, daemon=True)
    thread.start()
    tid = thread.native_id
    assert not image().call("ended", tid)
    is_over.set()
    thread.join()
    while Path(f"/proc/self/task/{tid}").exists():
        pass
    assert image().call("ended", tid)


def test_one_whose_number_another_process_has_by_now_has_ended():
    """It was taken for one that runs and cannot be read, and waited for, for ever."""
    assert image().call("ended", os.getppid())
    assert not image().call("ended", os.getpid())
