"""Hit counts of attachments: `Count`, a native action, and a counter of calls of a Python handler."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable
from typing import Any

from ftrace.core.handlers.resolve import foreign_address
from ftrace.core.maps import Array
from ftrace.core.summary import Row, Summary
from kprobes.handlers.native_decorator import native
from sandbox.native import NativeFunction, u64
from sandbox.process import fork


class Count(Summary, fork.ProcessBound):
    """A built-in native action that counts hits: `kprobes.attach("vfs_*", action=kprobes.Count())`.

    Attachments that share one Count are counted together.
    """

    def __init__(self) -> None:
        counted = self._counted = Array(u64, 1)

        @native
        def count_hit(p, regs):  # type: ignore[no-untyped-def]  # the decorator fills them in
            counted[0] += 1  # type: ignore[index]  # native: a map's element is a variable

        @native
        def count_return(ri, regs):  # type: ignore[no-untyped-def]
            counted[0] += 1  # type: ignore[index]  # native: a map's element is a variable

        self.pre, self.handler = count_hit, count_return

    @property
    def hits(self) -> int:
        """Hits so far, over all threads."""
        return int(self._counted[0])

    def _summary_rows(self) -> list[Row]:
        return [("hits", self.hits)]


class PythonCount:
    """An exact count of the calls of a Python handler by any number of threads."""

    def __init__(self) -> None:
        self._calls = itertools.count()
        self._reads = 0
        self._lock = fork.renew(threading.Lock())

    def counting(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """A wrapper of `handler` that counts its calls."""
        calls = self._calls

        @functools.wraps(handler)
        def counted(*arguments: Any) -> Any:
            next(calls)  # one operation of the interpreter: no lock is needed
            return handler(*arguments)

        return counted

    @property
    def hits(self) -> int:
        """Calls so far."""
        with self._lock:
            self._reads += 1  # a reading advances the counter as well
            return next(self._calls) - (self._reads - 1)


def is_python(handler: Any) -> bool:
    """Whether `handler` is a Python callable: neither a native function nor a C function pointer."""
    return callable(handler) and not isinstance(handler, NativeFunction) and foreign_address(handler) is None
