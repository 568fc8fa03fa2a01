"""HAZARDS 5: who waits until nobody is inside takes no hit for the next one."""

from __future__ import annotations

import ctypes
import shutil
import threading

import pytest
from isolation import isolated


@isolated
def test_a_hit_that_counts_itself_late_is_waited_for():
    from ftrace.hit.quiesce import wait_for_task
    from sandbox.native import Unit
    from sandbox.native.native_image import NativeImage
    from sandbox.threads.tasks import Task

    image = NativeImage.of(Unit("waiting", [wait_for_task], bounded=False))
    task = Task.ctypes()
    task.rec, task.serial = 1, 7

    def wait():
        image.call_and_wait("wait_for_task", ctypes.addressof(task), 0, 0)

    waiter = threading.Thread(target=wait)
    waiter.start()
    waiter.join(0.2)
    task.serial += 1  # the hit that is being waited for has loaded its list, and counts itself now
    waiter.join(0.5)
    assert waiter.is_alive()
    task.serial += 1  # another one has begun
    waiter.join(30)
    assert not waiter.is_alive()


ENDS_IN_HANDLER = r"""
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>
__attribute__((noipa)) long leaf(long x) { return x + 1; }
static void *calls(void *x) { return (void *)leaf((long)x); }
long start(void) { pthread_t t; return pthread_create(&t, 0, calls, 0) || pthread_detach(t); }
"""
HANDLER = r"""
#include <sys/syscall.h>
#include <unistd.h>
int ends(void *fp, unsigned long ip) { syscall(SYS_exit, 0); return 0; }
"""


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
@isolated(timeout=60)
def test_a_thread_that_has_ended_inside_a_hit_is_not_waited_for():
    import time
    from pathlib import Path

    from programs import load_c

    import fprobe

    module, handlers = load_c(ENDS_IN_HANDLER), load_c(HANDLER)
    before = len(list(Path("/proc/self/task").iterdir()))
    with fprobe.attach("leaf", entry=handlers["ends"]) as probe:
        assert module["start"]() == 0
        while not probe.counts.hits or len(list(Path("/proc/self/task").iterdir())) > before:
            time.sleep(0.01)
    assert probe.counts.hits == 1
