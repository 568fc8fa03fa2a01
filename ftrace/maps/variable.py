"""per_task: a variable of which every thread has its own, in its task record."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from ftrace.maps.areas import Total
from ftrace.runtime import runtime
from sandbox import tasks
from sandbox.native import Structure, addressof, cast, native, ptr, struct, u8, u64
from sandbox.native.annotations import Namespace
from sandbox.native.containers import Container, Operation, check_value_type
from sandbox.native.structs import Struct
from sandbox.tasks import current


@struct
class Place(Structure):
    """Where a variable is in the task record."""

    offset: u64


@native(inline=True)
def variable_slot(state: ptr[Place]) -> u64:
    return cast(u64, addressof(cast(ptr[u8], current())[state.offset]))


_used = 0
_lock = threading.Lock()


def _take(size: int) -> int:
    """The offset of `size` bytes that no other variable has."""
    global _used
    with _lock:
        if _used + size > tasks.VARIABLE_ROOM:
            left = tasks.VARIABLE_ROOM - _used
            raise MemoryError(f"a per-task variable of {size} bytes does not fit: {left} of a task's room are left")
        offset, _used = tasks.VARIABLES + _used, _used + size
    return offset


class PerTask(Container):
    """A variable of each thread's own; see `per_task`."""

    def __init__(self, value: Any) -> None:
        self.type = check_value_type(value, "a per-task variable")
        record = self.type if isinstance(self.type, Struct) else _boxed(self.type)
        super().__init__(Place, {".": Operation(variable_slot, place=record)})
        self._place = Place.ctypes(_take(-(-self.type.size // 8) * 8))

    @property
    def state(self) -> bytes:
        """What native functions know of the variable."""
        return bytes(self._place)

    def items(self) -> Iterator[tuple[int, Any]]:
        """Pairs of native thread id and value, of all threads that have a task."""
        for task in runtime().tasks():
            if task.state == tasks.CLAIMED:
                value = Total(self.type)
                value.add(_address(task) + self._place.offset)
                yield task.tid, value.plain


def _address(task: Any) -> int:
    import ctypes

    return ctypes.addressof(task)


def _boxed(type_: Any) -> Any:
    return Struct("per_task", {"value": type_}, Namespace({}, {}))


def per_task(type_: Any) -> Any:
    """A variable that every thread has for itself, zero at first: `depth = per_task(u64)`, then `depth.value += 1`.

    One of a struct is used by its fields. It takes room in every task's record and keeps it until the process ends.
    Raises TypeError for what is no integer, pointer or struct, MemoryError if the records' room is used up.
    """
    return PerTask(type_)
