"""Properties that are computed once for each object, without a lock.

Before Python 3.12, functools has one lock for a property of all objects: threads that use different objects wait for each other,
and a child forked during another thread's computation deadlocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

Value = TypeVar("Value")


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
