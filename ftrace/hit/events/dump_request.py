"""dump and cpudump at a hit: stop recording, and request the buffer's text. Native."""

from __future__ import annotations

from ftrace.hit.unwind.walk import StackPoint
from sandbox.native import *
from sandbox.threads.tasks import current
from sandbox.x86_64.syscalls import SYS_WRITE

ALL = 0xFFFF_FFFF
"""In a request: every slot."""


@struct
class DumpTarget(Structure):
    """The argument of `request_dump`."""

    tracing_on: ptr[u64]
    pipe: ptr[u64]  # the file descriptor for requests
    own_slot: u64  # not 0: dump only the slot of the hit


@native(name="event_request_dump")
def request_dump(argument: u64, record: ptr[u8], length: u64, point: ptr[StackPoint]) -> void:
    """Write the number of the slot to the pipe; if the pipe is full, the request is dropped."""
    target = cast(ptr[DumpTarget], argument)
    store(target.tracing_on, 0, "release")
    slot: u64 = cast(u64, current().index) if target.own_slot != 0 else ALL
    syscall(SYS_WRITE, target.pipe[0], cast(u64, addressof(slot)), 8, 0, 0, 0)


FUNCTIONS = (request_dump,)
