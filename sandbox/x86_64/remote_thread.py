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
GATE = 48
"""Where the address of the fork gate is, if an interpreter was brought along (`sandbox.x86_64.fork_gate`); 0: there is none."""
STATUS, STATUS_SIZE = 64, 1984
"""Where the Python source reports to the process that has sent it."""
SOURCE = 2048
_STACK = 65536
_EXIT, _SCHED_YIELD = 60, 24
_RAX, _RSI = 0xB8, 0xBE
FUNCTIONS = ("pthread_create", "pthread_detach", "munmap", "dlopen")
KEYS = "__pthread_keys"
"""glibc's table of the keys of thread-specific data: a number and a destructor for each."""
_KEYS, _ROUNDS = 32, 4
"""Keys whose data are in `struct pthread` itself; and how often glibc repeats their destruction."""
PYTHON = ("Py_IsInitialized", "PyGILState_Ensure", "PyRun_SimpleString", "PyGILState_Release")


class Places(NamedTuple):
    """Of the first thread: the offset in the mapping of its id, and that in `struct pthread` of its thread-specific data."""

    thread_id: int
    specific: int


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


def code(addresses: Mapping[str, int], room: Room, places: Places) -> bytes:
    """The code for the functions at `addresses`.

    It begins with r12 at the context. The first thread does nothing but pthread_create, for which it has a stack and
    thread-local storage of its own; so it holds no lock of the program.
    """
    run = b"\x49\x8d\xbc\x24" + number(SOURCE) + call(addresses["PyRun_SimpleString"])
    run += b"\x49\x89\x44\x24" + bytes([_RESULT])
    if_wanted = b"\x41\x83\x7c\x24" + bytes([CANCELLED]) + b"\x00\x75" + bytes([len(run)]) + run
    with_gil = call(addresses["PyGILState_Ensure"]) + b"\x49\x89\x44\x24" + bytes([_ENSURED]) + if_wanted
    with_gil += b"\x49\x8b\x7c\x24" + bytes([_ENSURED]) + call(addresses["PyGILState_Release"])
    body = begin(addresses) + call(addresses["Py_IsInitialized"])
    body += b"\x85\xc0\x74" + bytes([len(with_gil)]) + with_gil
    return create(addresses, places) + body + end(addresses["munmap"], room, places)


def create(addresses: Mapping[str, int], places: Places) -> bytes:
    """The first thread: it makes a pthread that runs what follows, and ends."""
    made = b"\x4c\x89\xe1" + call(addresses["pthread_create"]) + b"\x41\x89\x44\x24" + bytes([CREATED])
    after = (
        made
        + _destroy(addresses[KEYS], places.specific)
        + _set(CREATED + 4)
        + b"\x31\xff\xb8"
        + number(_EXIT)
        + b"\x0f\x05"
    )
    # mov %r12,%rdi; xor %esi,%esi; lea body(%rip),%rdx; mov %r12,%rcx; the call; its result; exit(0)
    return b"\x4c\x89\xe7\x31\xf6\x48\x8d\x15" + number(len(after)) + after


def begin(addresses: Mapping[str, int]) -> bytes:
    """The pthread's beginning: it keeps r12, which then is the context, is detached, and waits until no library is being loaded.

    Then its stack is aligned.
    """
    detach = b"\x41\x54\x49\x89\xfc\x49\x8b\x3c\x24" + call(addresses["pthread_detach"])
    return detach + _until_loader_is_free(addresses["dlopen"])


def _destroy(keys: int, specific: int) -> bytes:
    """Call the destructors of the thread-specific data that memory allocators have made: jemalloc keeps lists of its threads.

    ebx: a key, times 16; r14: rounds; r13: the key's data.
    """
    called = b"\x49\xc7\x45\x08\0\0\0\0" + _load(_RAX, keys) + b"\x48\x8b\x44\x18\x08\x48\x85\xc0\x74\x02\xff\xd0"
    # movq $0,8(%r13); mov 8(%rax,%rbx),%rax; test %rax,%rax; je; call *%rax
    one = b"\x64\x4c\x8b\x2c\x25\x10\0\0\0\x4d\x8d\xac\x1d" + number(specific)
    # mov %fs:16,%r13; lea specific(%r13,%rbx),%r13
    one += b"\x49\x8b\x7d\x08\x48\x85\xff\x74" + bytes([len(called)]) + called  # mov 8(%r13),%rdi; test %rdi,%rdi; je
    one += b"\x83\xc3\x10\x81\xfb" + number(16 * _KEYS)  # add $16,%ebx; cmp; jb
    loop = b"\x31\xdb" + one + b"\x72" + struct.pack("b", -len(one) - 2) + b"\x41\xff\xce"  # dec %r14d; jnz
    return b"\x41\xbe" + number(_ROUNDS) + loop + b"\x75" + struct.pack("b", -len(loop) - 2)


def end(munmap: int, room: Room, places: Places) -> bytes:
    """The pthread's end: it waits for that of the first thread and until the stopped one is released, and unmaps the code."""
    thread_id = places.thread_id - room.context
    wait = b"\x41\x83\xbc\x24" + number(thread_id) + b"\x00\x74\x09\xb8" + number(_SCHED_YIELD) + b"\x0f\x05"
    back = -(len(wait) + 2)
    unmap = b"\x49\x8d\xbc\x24" + number(-room.context) + _load(_RSI, room.whole) + b"\x41\x5c"
    unmap += _load(_RAX, munmap) + b"\xff\xe0"
    return _set(DONE) + wait + b"\xeb" + struct.pack("b", back) + _until_released() + unmap


def _until_loader_is_free(dlopen: int) -> bytes:
    """dlopen(NULL, RTLD_NOW), which waits while another thread loads a library. Later that would be with the GIL."""
    return b"\x31\xff\xbe" + number(2) + call(dlopen)


def _until_released() -> bytes:
    """Skip the rest, and so leave the mapping, if the other thread is not released in time: its tracer may have been killed."""
    look = b"\x41\x83\x7c\x24" + bytes([RELEASED]) + b"\x00\x75"  # cmpl $0, RELEASED(%r12); jne
    again = b"\xb8" + number(_SCHED_YIELD) + b"\x0f\x05\x41\x83\x6c\x24" + bytes([PATIENCE]) + b"\x01\x75"
    back = -(len(look) + 1 + len(again) + 1)
    rest = again + struct.pack("b", back) + b"\x41\x5c\x31\xc0\xc3"  # pop %r12; xor %eax,%eax; ret
    return look + bytes([len(rest)]) + rest


def _load(register: int, value: int) -> bytes:
    return b"\x48" + bytes([register]) + struct.pack("<Q", value)


def call(address: int) -> bytes:
    """xor %eax,%eax; mov $address,%rax; call *%rax"""
    return b"\x31\xc0" + _load(_RAX, address) + b"\xff\xd0"


def _set(offset: int) -> bytes:
    """movl $1, offset(%r12)"""
    return b"\x41\xc7\x44\x24" + bytes([offset]) + number(1)


def number(value: int) -> bytes:
    """32 bits of machine code."""
    return struct.pack("<i", value)
