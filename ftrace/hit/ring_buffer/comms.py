"""The names of threads, saved when they first record, so that they are available after the thread has ended."""

from __future__ import annotations

import ctypes

from sandbox.native import *
from sandbox.threads.system_calls import get_task_comm

CAPACITY = 4096
"""Maximum number of names. Of threads with the same id modulo this number, the last one's name is kept."""


@struct
class Comm(Structure):
    """The name of a thread, with its NUL."""

    tid: u64
    name: array[u64, 2]


SIZE = CAPACITY * Comm.size
"""Bytes of the table."""
table = global_var(u64, 0, name="thread_comms")  # its address; 0: no names are kept


@native
def save_comm(tid: u64) -> void:
    """Save the name of the running thread."""
    if table == 0:
        return
    comm = cast(ptr[Comm], table + (tid & CAPACITY - 1) * sizeof(Comm))
    store(addressof(comm.tid), 0, "release")
    get_task_comm(cast(ptr[u8], addressof(comm.name[0])))
    store(addressof(comm.tid), tid, "release")


def find_comm(address: int, tid: int) -> str | None:
    """The name of a thread in the table at `address`; None if it is not kept."""
    comm = Comm.ctypes.from_address(address + tid % CAPACITY * Comm.size)
    text = ctypes.string_at(ctypes.addressof(comm.name), 16).partition(b"\0")[0]
    return text.decode("utf-8", "surrogateescape") if comm.tid == tid else None


def threads(address: int) -> list[int]:
    """The ids of the threads whose names are in the table at `address`."""
    kept = (Comm.ctypes * CAPACITY).from_address(address)
    return [comm.tid for comm in kept if comm.tid]
