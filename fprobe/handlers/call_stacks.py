"""Times calls by their stacks of native and Python frames."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from types import FrameType
from typing import Any, NamedTuple

from fprobe.handlers.native import native
from ftrace.core.runtime import runtime
from ftrace.core.unwind.stacktrace import stack_trace_save
from sandbox.native import ptr, rdtsc, u64
from sandbox.process.once import cached_property
from sandbox.symbols.libraries import Library, library_at

_DEPTH = 128
_REMEMBERED = 10_000
Key = tuple[int | str, ...]


@native
def call_begins(fp, ip, ret_ip, regs, data: ptr[u64]):  # type: ignore[no-untyped-def]  # the decorator fills them in
    data[0] = rdtsc()


class _Done(NamedTuple):
    """A call that has returned. `cost`: its ticks, these handlers included; `total`: without them."""

    entered: int
    cost: int
    total: int


class CallStacks(ABC):
    """Handlers that call `count` with the stack of each call that returns."""

    def __init__(self) -> None:
        self._thread = threading.local()

    @property
    def handlers(self) -> dict[str, Any]:
        """Arguments for `attach`: a native entry handler, and an exit handler that reads the stack."""
        return {"entry": call_begins, "exit": self._exit}

    def _exit(self, fp: Any, ip: int, ret_ip: int, regs: Any, data: Any) -> None:
        read_tsc = runtime().image.call
        left, entered = read_tsc("read_tsc"), int.from_bytes(bytes(data[:8]), "little")
        inner = self._take_inner(entered)
        python = python_frames(sys._getframe().f_back)
        native_frames = [address for address in self._native_frames(bool(python)) if address != ip]
        own = left - entered - sum(each.cost for each in inner)
        total = own + sum(each.total for each in inner)
        self.count((*python, *reversed(native_frames), ip), own, total)
        self._done.append(_Done(entered, read_tsc("read_tsc") - entered, total))

    @property
    def _done(self) -> deque[_Done]:
        """The calls of this thread that have returned, for their callers."""
        done: deque[_Done] | None = getattr(self._thread, "done", None)
        if done is None:
            done = self._thread.done = deque(maxlen=_REMEMBERED)
        return done

    def _take_inner(self, entered: int) -> list[_Done]:
        """Remove and return the calls that were made inside the call that began at `entered`."""
        done, inner = self._done, []
        while done and done[-1].entered > entered:
            inner.append(done.pop())
        return inner

    @abstractmethod
    def count(self, stack: Key, own: int, total: int) -> None:
        """Count a call. `stack`: outermost first, a text for a Python frame, the address of a native one, and last the
        function's; `total`: its ticks; `own`: those without calls inside. Both are without what these handlers take.
        """

    def _native_frames(self, below_python: bool) -> list[int]:
        """Return addresses, innermost first; `below_python`: stop at the interpreter."""
        frames = stack_trace_save(_DEPTH)
        if below_python and self._interpreter is not None:
            end = next((at for at, address in enumerate(frames) if address in self._interpreter), len(frames))
            return frames[:end]
        return frames

    @cached_property
    def _interpreter(self) -> Library | None:
        address = ctypes.cast(ctypes.pythonapi.PyEval_EvalCode, ctypes.c_void_p).value
        return library_at(address or 0)


def python_frames(frame: FrameType | None) -> list[str]:
    """The Python frames from the outermost to `frame`."""
    found = []
    while frame is not None:
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name)
        found.append(f"{name} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})")  # noqa: PTH119
        frame = frame.f_back
    return found[::-1]
