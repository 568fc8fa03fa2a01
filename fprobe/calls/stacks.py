"""Counts and times calls by their stacks of native and Python frames."""

from __future__ import annotations

import atexit
import ctypes
import sys
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

from fprobe.actions import Action
from fprobe.calls.stack_memory import PYTHON, StackMemory
from ftrace.core.handlers.kinds import BoundHandler
from ftrace.core.runtime import runtime
from ftrace.core.unwind import python_layouts
from ftrace.core.unwind.code_map import unwind_tables
from ftrace.hit.stacks import collecting, python_frames
from ftrace.hit.stacks.collecting import StackCall
from ftrace.hit.stacks.python_frames import PythonLayout
from ftrace.hit.stacks.stack_table import PIECES, StackTable, ThreadStack
from sandbox.memory.mappings import PAGE
from sandbox.native import Unit
from sandbox.native.handler import Fields
from sandbox.native.native_image import NativeImage
from sandbox.process.once import once

_DEALLOC = 48
"""Offset of tp_dealloc in a type."""
_FROM_RUNTIME = ("unwind_code_map", "unwind_own_text", "unwind_own_text_end")


@once
def stack_image() -> NativeImage:
    """The native functions that collect stacks. They are never unmapped: a code object may be being freed by one."""
    image = NativeImage.of(
        Unit("call-stacks", (*collecting.FUNCTIONS, *python_frames.FUNCTIONS), bounded=False), uses=runtime().image
    )
    image.variable("task_offset").value = runtime().key.offset
    image.publish()
    return image


def piece_offsets() -> tuple[dict[str, int], int]:
    """The offset of each piece of the table in its memory, and the size of all."""
    offsets, at = dict[str, int](), 0
    for name, size in PIECES:
        offsets[name] = at
        at += -(-size // PAGE) * PAGE
    return offsets, at


class Stacks:
    """A table of stacks in the memory at `start`, which holds zeros, and how Python's frames are read. One at a time.

    `why_no_python`: why stacks have no frames of Python; empty if they have.
    """

    def __init__(self, start: int) -> None:
        self._image = stack_image()
        unwind_tables().refresh()
        for name in _FROM_RUNTIME:
            self._image.variable(name).value = runtime().image.variable(name).value
        self._start, self._pieces = start, piece_offsets()[0]
        self.native: Any = StackTable.ctypes()
        for name, offset in self._pieces.items():
            ctypes.c_uint64.from_address(ctypes.addressof(self.native) + StackTable.offset(name)).value = start + offset
        self.why_no_python = self._read_python()

    @property
    def address(self) -> int:
        """The address of the native table."""
        return ctypes.addressof(self.native)

    def see_libraries(self) -> None:
        """Walk through code that has been loaded meanwhile, too: without its unwind tables a stack ends there."""
        unwind_tables().refresh()

    def end(self) -> None:
        """Free code objects as before. No probe may use the table any more."""
        if self._image.variable("stack_table").value == self.address:
            _dealloc_slot().value = self._image.variable("python_code_dealloc").value
            self._image.variable("stack_table").value = 0

    def _read_python(self) -> str:
        """Have hits read Python's frames, if those of this thread are read rightly; else why they are not."""
        if self._image.variable("stack_table").value:
            return "another table of stacks is in use"
        if reason := python_layouts.why_unknown():
            return reason
        layout = PythonLayout.ctypes.from_address(self._image.address("python_layout"))
        if not python_layouts.fill(layout):
            return "where this C library keeps the interpreter's word of a thread is not known"
        if wrong := self._difference():
            layout.of_thread = 0
            return f"those of Python {sys.version.partition(' ')[0]} are not where they should be ({wrong})"
        self._image.variable("python_interpreter_ends").value = 0
        atexit.register(self._interpreter_ends)
        self._image.variable("python_code_dealloc").value = _dealloc_slot().value
        self._image.variable("stack_table").value = self.address
        _dealloc_slot().value = self._image.address("python_code_freed")
        return ""

    def _interpreter_ends(self) -> None:
        self._image.variable("python_interpreter_ends").value = 1
        self.end()

    def _difference(self) -> str:
        """What is read wrongly of this thread's frames; empty if nothing is."""
        known = list(_frames_from(sys._getframe()))
        node, area = ctypes.c_uint64(), self._start + self._pieces["threads"]
        count = self._image.call("python_stack", self.address, area, ctypes.addressof(node))
        ctypes.c_uint64.from_address(area + ThreadStack.offset("count")).value = 0  # another thread's, perhaps
        memory = self.memory()
        found = [*reversed(memory.frames(node.value))][-len(known) :]
        if not count or len(found) < len(known) or not all(frame & PYTHON for frame in found):
            return f"{len(known)} frames, of which {len(found)} are found"
        for frame, (code, instruction) in zip(found, known, strict=True):
            read = memory.code(frame >> 32 & (1 << 31) - 1)
            name = getattr(code, "co_qualname", code.co_name)
            if read != (code.co_filename, name, code.co_firstlineno, code.co_linetable):
                return f"{name} is read as {read.name}"
            if code is not type(self)._difference.__code__ and frame & (1 << 32) - 1 != instruction:
                return f"{name} is at {instruction} and not at {frame & (1 << 32) - 1}"
        return ""

    def memory(self) -> StackMemory:
        """What has been counted so far."""
        return StackMemory(
            lambda at, size: ctypes.string_at(self._start + at, size), self._pieces, sys.version_info.minor
        )


def _frames_from(frame: FrameType | None) -> Iterator[tuple[CodeType, int]]:
    """Code and instruction of each frame, innermost first."""
    while frame is not None:
        yield frame.f_code, frame.f_lasti
        frame = frame.f_back


def _dealloc_slot() -> ctypes.c_uint64:
    return ctypes.c_uint64.from_address(id(CodeType) + _DEALLOC)


class StackCalls(Action):
    """Counts and times calls by their stacks."""

    entry_data_size = StackCall.size

    def __init__(self, stacks: Stacks) -> None:
        super().__init__()
        self._stacks = stacks

    def prepare(self, functions: int) -> None:
        """See `Action`."""
        image = stack_image()
        self.entry = BoundHandler(
            image.address("stack_entry"), plain=True, registers=Fields(frozenset({"sp", "bp"})), keep=self._stacks
        )
        self.exit = BoundHandler(image.address("stack_exit"), plain=True, registers=Fields(), keep=self._stacks)

    @property
    def state(self) -> int:
        """Address of the table."""
        return self._stacks.address
