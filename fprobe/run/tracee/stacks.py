"""Counts and times calls by their stacks of native and Python frames, in the launcher's file."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections import deque
from types import FrameType
from typing import Any

from fprobe.handlers.native import native
from fprobe.run import session
from fprobe.run.tracee.table import Table
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


class Stacks:
    """The handlers, and the numbers of the stacks that this process has seen."""

    def __init__(self, address: str, table: Table) -> None:
        self._address = address
        self._table = table
        self._numbers: dict[Key, int] = {}
        self._thread = threading.local()

    @property
    def handlers(self) -> dict[str, Any]:
        """Arguments for `attach`: a native entry handler, and an exit handler that reads the stack."""
        return {"entry": call_begins, "exit": self._exit}

    def _exit(self, fp: Any, ip: int, ret_ip: int, regs: Any, data: Any) -> None:
        read_tsc = runtime().image.call
        left, entered = read_tsc("read_tsc"), int.from_bytes(bytes(data[:8]), "little")
        inner = self._take_inner(entered)
        self._count(ip, left - entered - sum(cost for _, cost in inner))
        self._done.append((entered, read_tsc("read_tsc") - entered))

    @property
    def _done(self) -> deque[tuple[int, int]]:
        """Entry time and ticks, handlers included, of the calls of this thread that have returned, for their callers."""
        done: deque[tuple[int, int]] | None = getattr(self._thread, "done", None)
        if done is None:
            done = self._thread.done = deque(maxlen=_REMEMBERED)
        return done

    def _take_inner(self, entered: int) -> list[tuple[int, int]]:
        """Remove and return the calls that were made inside the call that began at `entered`."""
        done, inner = self._done, []
        while done and done[-1][0] > entered:
            inner.append(done.pop())
        return inner

    def _count(self, ip: int, ticks: int) -> None:
        """Count a call of the function at `ip` under its stack. `ticks`: its duration, excluding calls inside."""
        python = _python_frames(sys._getframe(1).f_back)
        native_frames = [address for address in self._native_frames(bool(python)) if address != ip]
        number = self._number((*python, *reversed(native_frames), ip))
        if number < session.STACKS and self._table.stacks:
            cell = (ctypes.c_uint64 * 2).from_address(self._table.stacks + 16 * number)
            cell[0] += 1
            cell[1] += ticks

    def _number(self, stack: Key) -> int:
        number = self._numbers.get(stack)
        if number is None:
            number = self._numbers[stack] = len(self._numbers)
            session.note(self._address, stack=number, frames=stack)
        return number

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


def _python_frames(frame: FrameType | None) -> list[str]:
    """The Python frames from the outermost to `frame`."""
    found = []
    while frame is not None:
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name)
        found.append(f"{name} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})")  # noqa: PTH119
        frame = frame.f_back
    return found[::-1]
