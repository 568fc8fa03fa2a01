"""dump and cpudump: the buffer's text on standard error, as ftrace_dump() in kernel/trace/trace.c writes it to the console.

A hit stops recording and writes a request into a pipe; a thread formats the records and writes them.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import partial

from ftrace.events.dump_request import ALL, DumpTarget
from ftrace.events.trace_array import TraceArray
from ftrace.events.triggers.event_file import NativeCall
from ftrace.output.trace import record_format
from ftrace.runtime import runtime
from sandbox.process import fork
from sandbox.process.once import once
from sandbox.threads.own_thread import OwnThread

_RULE = "---------------------------------\n"


def dump_text(array: TraceArray, slot: int | None = None) -> str:
    """The text of a dump: the records of all slots, or of one."""
    shown = record_format(array, {})
    lines = "".join(shown.lines(list(array.buffer.records(slot))))
    return (
        f"Dumping ftrace buffer:\n{_RULE}{lines}{_RULE}"
        if lines
        else "Dumping ftrace buffer:\n   (ftrace buffer empty)\n"
    )


class Dumper:
    """The pipe of a trace array, and the thread that reads from it. The child of a fork gets its own."""

    def __init__(self, array: TraceArray) -> None:
        self._array = array
        self.descriptor = ctypes.c_uint64()
        self._start()
        fork.in_child(fork.Phase.THREADS, self._start)

    def _start(self) -> None:
        reading, writing = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(writing, False)
        self.descriptor.value = writing
        OwnThread(partial(self._serve, reading))

    def _serve(self, reading: int) -> None:
        while request := os.read(reading, 8):
            slot = int.from_bytes(request, "little")
            sys.stderr.write(dump_text(self._array, None if slot == ALL else slot))
            sys.stderr.flush()


@once
def _dumpers() -> dict[TraceArray, Dumper]:
    return {}


def dump_call(array: TraceArray, own_slot: bool) -> NativeCall:
    """The call with which a hit dumps the records of a trace array or, with `own_slot`, of the hit's slot."""
    dumper = _dumpers().get(array) or _dumpers().setdefault(array, Dumper(array))
    target = DumpTarget.ctypes(array.switch, ctypes.addressof(dumper.descriptor), int(own_slot))
    return NativeCall(runtime().image.address("event_request_dump"), ctypes.addressof(target), (target, dumper))
