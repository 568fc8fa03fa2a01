"""per_task: variables with a value for each thread, in its task record."""

from __future__ import annotations

import ctypes
import gc
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any

from ftrace.core.maps.areas import Total
from ftrace.core.runtime import runtime
from sandbox.native import *
from sandbox.native.containers import Container, Operation, check_value_type
from sandbox.native.front.annotations import Namespace
from sandbox.native.front.structs import Struct
from sandbox.process import fork
from sandbox.threads import tasks
from sandbox.threads.tasks import current


@struct
class VariableOffset(Structure):
    """The offset of a variable in the task record."""

    offset: u64


@native(inline=True)
def variable_slot(state: ptr[VariableOffset]) -> u64:
    return cast(u64, addressof(cast(ptr[u8], current())[state.offset]))


class Space:
    """The space for variables in every task's record: the allocated parts, as offsets from its start and sizes."""

    def __init__(self) -> None:
        self._taken: dict[int, int] = {}
        self._touched = 0
        """Space below this offset has been used and may not be zero."""
        self._lock = fork.renew(threading.Lock())
        # Space may be freed by the garbage collector, which can run while the lock is held.
        self._given_back: deque[int] = deque()

    def take(self, size: int) -> int:
        """The offset in a task of `size` bytes that no other variable has, zero in all tasks. Raises MemoryError."""
        if not self._fits(size):
            gc.collect()  # variables in reference cycles, such as those of a dropped module and its handlers
        with self._lock:
            self._take_back()
            start = self._gap(size)
            if start + size > tasks.VARIABLE_SPACE:
                left = tasks.VARIABLE_SPACE - sum(self._taken.values())
                raise MemoryError(
                    f"a per-task variable of {size} bytes does not fit: {left} bytes are left in a task's record"
                )
            self._taken[start] = size
            if start < self._touched:
                _clear(tasks.VARIABLES + start, size)
            self._touched = max(self._touched, start + size)
        return tasks.VARIABLES + start

    def _fits(self, size: int) -> bool:
        with self._lock:
            self._take_back()
            return self._gap(size) + size <= tasks.VARIABLE_SPACE

    def _take_back(self) -> None:
        while self._given_back:
            del self._taken[self._given_back.popleft()]

    def give_back(self, offset: int) -> None:
        """Free the space at `offset`."""
        self._given_back.append(offset - tasks.VARIABLES)

    def _gap(self, size: int) -> int:
        """The start of the first `size` free bytes; the last free stretch extends beyond the space."""
        end = 0
        for start, length in sorted(self._taken.items()):
            if start - end >= size:
                return end
            end = start + length
        return end


def _clear(offset: int, size: int) -> None:
    for task in runtime().tasks():
        ctypes.memset(_address(task) + offset, 0, size)


_space = Space()


class PerTask(Container):
    """A variable of each thread's own; see `per_task`."""

    def __init__(self, value: Any) -> None:
        self.type = check_value_type(value, "a per-task variable")
        record = self.type if isinstance(self.type, Struct) else _boxed(self.type)
        super().__init__(VariableOffset, {".": Operation(variable_slot, place=record)})
        offset = _space.take(-(-self.type.size // 8) * 8)
        self._place = VariableOffset.ctypes(offset)
        self._finalizer = weakref.finalize(self, _space.give_back, offset)
        self._finalizer.atexit = False

    @property
    def state(self) -> bytes:
        """The variable's state, as native functions have it."""
        return bytes(self._place)

    def items(self) -> Iterator[tuple[int, Any]]:
        """Pairs of native thread id and value, of all threads that have a task."""
        for task in runtime().tasks():
            if task.state == tasks.CLAIMED:
                value = Total(self.type)
                value.add(_address(task) + self._place.offset)
                yield task.tid, value.plain


def _address(task: Any) -> int:
    return ctypes.addressof(task)


def _boxed(type_: Any) -> Any:
    return Struct("per_task", {"value": type_}, Namespace({}, {}))


def per_task(type_: Any) -> Any:
    """A variable with a value for each thread, initially zero: `depth = per_task(u64)`, then `depth.value += 1`.

    A struct is used through its fields. The variable takes space in every task's record for as long as it exists: handlers that
    name it keep it, and probes keep their handlers. Raises TypeError if the type is not an integer, pointer or struct,
    MemoryError if the records have no space left.
    """
    return PerTask(type_)
