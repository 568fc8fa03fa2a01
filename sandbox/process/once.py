"""Values that are computed once, at first use: for the process, or for each object.

Neither waits for another thread's computation with a lock that a child of a fork would inherit. functools.cached_property does
before Python 3.12: it has one lock for a property of all objects, and a child forked during a computation deadlocks.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar, overload

from sandbox.process import fork

Key = TypeVar("Key", bound=Hashable)
Made = TypeVar("Made")
Value = TypeVar("Value")


def once(make: Callable[[], Made]) -> Callable[[], Made]:
    """Decorator: the first call makes the object, and later calls return it; concurrent calls wait.

    A process forked during the first call makes its own.
    """
    lock = fork.renew(threading.RLock())
    made: list[Made] = []

    @functools.cache  # without Python code for all calls but those before the first has returned
    @functools.wraps(make)
    def get() -> Made:
        with lock:
            if not made:
                made.append(make())
        return made[0]

    return get


def once_for_each(make: Callable[[Key], Made]) -> Callable[[Key], Made]:
    """Decorator: as `once`, for each value of the argument."""
    lock = fork.renew(threading.RLock())
    made: dict[Key, Made] = {}

    @functools.wraps(make)
    def get(key: Key) -> Made:
        if key not in made:
            with lock:
                if key not in made:
                    made[key] = make(key)
        return made[key]

    return get


class cached_property(Generic[Value]):
    """Decorator: the method is called when the attribute is first read, and its result becomes the attribute.

    Several threads may call it at the same time; all get the same result.
    """

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> cached_property[Value]: ...

    @overload
    def __get__(self, instance: object, owner: type | None = None) -> Value: ...

    def __get__(self, instance: object | None, owner: type | None = None) -> cached_property[Value] | Value:
        if instance is None:
            return self
        value = self._compute(instance)
        known: dict[str, Value] = instance.__dict__
        return known.setdefault(self._name, value)
