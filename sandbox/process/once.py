"""Lazily created process-wide singletons."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import TypeVar

from sandbox.process import fork

Made = TypeVar("Made")


def once(make: Callable[[], Made]) -> Callable[[], Made]:
    """Decorator: the first call makes the object, and later calls return it; concurrent calls wait.

    A process forked during the first call makes its own.
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
