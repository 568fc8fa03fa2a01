"""The code that a new thread in another process runs: it makes a pthread, which runs Python source and unmaps the code.

One mapping has everything: the code's page, the context, the stack of the first thread, and its thread-local storage.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

SYSCALL_RETURN = b"\x0f\x05\xc3"
"""syscall; ret"""
PAGE = 4096
_ENSURED, _RESULT = 16, 24
CREATED, DONE, CANCELLED = 8, 32, 36
"""Offsets in the context: the result of pthread_create, with 1 in its upper half; whether all is done; whether to do nothing."""
RELEASED, PATIENCE = 40, 44
"""Whether the stopped thread needs the mapping no more, and how often to look for that; if it is never said, it stays."""
STATUS, STATUS_SIZE = 64, 1984
"""Where the Python source reports to the process that has sent it."""
SOURCE = 2048
_STACK = 65536
_EXIT, _SCHED_YIELD = 60, 24
_RAX, _RSI = 0xB8, 0xBE
FUNCTIONS = ("pthread_create", "pthread_detach", "munmap", "dlopen")
PYTHON = ("Py_IsInitialized", "PyGILState_Ensure", "PyRun_SimpleString", "PyGILState_Release")


class Room(NamedTuple):
    """Sizes of the mapping's parts in bytes. `tls`: thread-local storage below the thread pointer; `block`: above it."""

    source: int
    tls: int
    block: int

    @property
    def context(self) -> int:
        """Offset of the context."""
        return PAGE

    @property
    def _top(self) -> int:
        return PAGE + -(-(SOURCE + self.source) // PAGE) * PAGE + _STACK

    @property
    def storage(self) -> int:
        """Offset of the thread-local storage."""
        return self._top

    @property
    def way_back(self) -> int:
        """Offset of the frame by which the thread that makes system calls for us would continue alone: a signal's fits below."""
        return self._top - _STACK + _STACK // 4

    @property
    def stack(self) -> int:
        """Offset of the word that the first thread returns to; then its stack is aligned as at a call."""
        return self._top - 72

    @property
    def pointer(self) -> int:
        """Offset of what the thread pointer points to."""
        return self._top + self.tls

    @property
    def whole(self) -> int:
        """Bytes of the mapping."""
        return -(-(self.pointer + self.block) // PAGE) * PAGE


def code(addresses: Mapping[str, int], room: Room, thread_id_at: int) -> bytes:
    """The code for the functions at `addresses`. `thread_id_at`: offset in the mapping of the first thread's id.

    It begins with r12 at the context. The first thread does nothing but pthread_create, for which it has a stack and
    thread-local storage of its own; so it holds no lock of the program.
    """
    body = _body(addresses, room, thread_id_at - room.context)
    create = b"\x4c\x89\xe1" + _call(addresses["pthread_create"]) + b"\x41\x89\x44\x24" + bytes([CREATED])
    after = create + _set(CREATED + 4) + b"\x31\xff\xb8" + _i32(_EXIT) + b"\x0f\x05"
    # mov %r12,%rdi; xor %esi,%esi; lea body(%rip),%rdx; mov %r12,%rcx; the call; its result; exit(0)
    return b"\x4c\x89\xe7\x31\xf6\x48\x8d\x15" + _i32(len(after)) + after + body


def _body(addresses: Mapping[str, int], room: Room, thread_id: int) -> bytes:
    """The pthread: when no library is being loaded, it runs the source with the GIL, unless that was cancelled; then it waits for
    the first thread's end.
    """
    run = b"\x49\x8d\xbc\x24" + _i32(SOURCE) + _call(addresses["PyRun_SimpleString"])
    run += b"\x49\x89\x44\x24" + bytes([_RESULT])
    if_wanted = b"\x41\x83\x7c\x24" + bytes([CANCELLED]) + b"\x00\x75" + bytes([len(run)]) + run
    with_gil = _call(addresses["PyGILState_Ensure"]) + b"\x49\x89\x44\x24" + bytes([_ENSURED]) + if_wanted
    with_gil += b"\x49\x8b\x7c\x24" + bytes([_ENSURED]) + _call(addresses["PyGILState_Release"])
    made = b"\x41\x54\x49\x89\xfc\x49\x8b\x3c\x24" + _call(addresses["pthread_detach"])
    made += (
        _until_loader_is_free(addresses["dlopen"])
        + _call(addresses["Py_IsInitialized"])
        + b"\x85\xc0\x74"
        + bytes([len(with_gil)])
        + with_gil
        + _set(DONE)
    )
    wait = b"\x41\x83\xbc\x24" + _i32(thread_id) + b"\x00\x74\x09\xb8" + _i32(_SCHED_YIELD) + b"\x0f\x05"
    back = -(len(wait) + 2)
    unmap = b"\x49\x8d\xbc\x24" + _i32(-room.context) + _load(_RSI, room.whole) + b"\x41\x5c"
    unmap += _load(_RAX, addresses["munmap"]) + b"\xff\xe0"
    return made + wait + b"\xeb" + struct.pack("b", back) + _until_released() + unmap


def _until_loader_is_free(dlopen: int) -> bytes:
    """dlopen(NULL, RTLD_NOW), which waits while another thread loads a library. Later that would be with the GIL."""
    return b"\x31\xff\xbe" + _i32(2) + _call(dlopen)


def _until_released() -> bytes:
    """Skip the rest, and so leave the mapping, if the other thread is not released in time: its tracer may have been killed."""
    look = b"\x41\x83\x7c\x24" + bytes([RELEASED]) + b"\x00\x75"  # cmpl $0, RELEASED(%r12); jne
    again = b"\xb8" + _i32(_SCHED_YIELD) + b"\x0f\x05\x41\x83\x6c\x24" + bytes([PATIENCE]) + b"\x01\x75"
    back = -(len(look) + 1 + len(again) + 1)
    rest = again + struct.pack("b", back) + b"\x41\x5c\x31\xc0\xc3"  # pop %r12; xor %eax,%eax; ret
    return look + bytes([len(rest)]) + rest


def _load(register: int, value: int) -> bytes:
    return b"\x48" + bytes([register]) + struct.pack("<Q", value)


def _call(address: int) -> bytes:
    return b"\x31\xc0" + _load(_RAX, address) + b"\xff\xd0"


def _set(offset: int) -> bytes:
    """movl $1, offset(%r12)"""
    return b"\x41\xc7\x44\x24" + bytes([offset]) + _i32(1)


def _i32(value: int) -> bytes:
    return struct.pack("<i", value)
