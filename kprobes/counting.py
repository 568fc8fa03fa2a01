"""How often the probes of an attachment were hit: counted natively by `Count`, or where its Python handler is called."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable
from typing import Any

from ftrace.handlers.kinds import foreign_address
from ftrace.maps import Array
from kprobes.native_decorator import native
from sandbox.native import NativeFunction, u64
from sandbox.process import fork


class Count:
    """A built-in action that counts hits, natively: `kprobes.attach("vfs_*", action=kprobes.Count())`.

    It may be that of several attachments; they are counted together.
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

    def __repr__(self) -> str:
        return f"<Count: {self.hits:,} hits>"


class PythonCount:
    """Counts the calls of a Python handler, exactly, with several threads."""

    def __init__(self) -> None:
        self._calls = itertools.count()
        self._reads = 0
        self._lock = fork.renew(threading.Lock())

    def counting(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """`handler`, whose calls are counted."""
        calls = self._calls

        @functools.wraps(handler)
        def counted(*arguments: Any) -> Any:
            next(calls)  # one operation of the interpreter: no lock is needed
            return handler(*arguments)

        return counted

    @property
    def hits(self) -> int:
        """Calls so far. Each reading advances the counter by one, too."""
        with self._lock:
            self._reads += 1
            return next(self._calls) - (self._reads - 1)


def is_python(handler: Any) -> bool:
    """Whether it is a Python callable, and neither a native function nor a C function pointer."""
    return callable(handler) and not isinstance(handler, NativeFunction) and foreign_address(handler) is None
