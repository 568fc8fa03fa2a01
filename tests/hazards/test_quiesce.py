"""HAZARDS 5: who waits until nobody is inside takes no hit for the next one."""

from __future__ import annotations

import ctypes
import threading

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
