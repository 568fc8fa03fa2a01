"""What there is one of in a process, made by whoever asks first."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import TypeVar

from sandbox.process import fork

Made = TypeVar("Made")


def once(make: Callable[[], Made]) -> Callable[[], Made]:
    """Decorator: the first call makes it, and others return the same; those that come meanwhile wait.

    A process that is forked meanwhile makes its own.
    """
    lock = fork.renew(threading.RLock())
    made: list[Made] = []

    @functools.wraps(make)
    def get() -> Made:
        if not made:
            with lock:
                if not made:
                    made.append(make())
        return made[0]

    return get
