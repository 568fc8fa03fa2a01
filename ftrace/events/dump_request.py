"""dump and cpudump at a hit: stop recording, and ask for the buffer's text. Native."""

from __future__ import annotations

from ftrace.unwind.walk import StackPoint
from sandbox.native import Structure, addressof, cast, native, ptr, store, struct, syscall, u8, u64, void
from sandbox.threads.tasks import current

ALL = 0xFFFF_FFFF
"""In a request: every slot."""
_SYS_WRITE = 1


@struct
class DumpTarget(Structure):
    """What a hit does it to."""

    tracing_on: ptr[u64]
    pipe: ptr[u64]  # the descriptor that requests are written to
    own_slot: u64  # not 0: only the hit's own slot is wanted


@native(name="event_request_dump")
def request_dump(argument: u64, record: ptr[u8], length: u64, point: ptr[StackPoint]) -> void:
    """Write the number of the slot; a request that finds the pipe full is dropped."""
    target = cast(ptr[DumpTarget], argument)
    store(target.tracing_on, 0, "release")
    slot: u64 = cast(u64, current().index) if target.own_slot != 0 else ALL
    syscall(_SYS_WRITE, target.pipe[0], cast(u64, addressof(slot)), 8, 0, 0, 0)


FUNCTIONS = (request_dump,)
