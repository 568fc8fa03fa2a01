"""A word per thread at the cost of one load: a pthread key whose offset from %fs is discovered and verified.

glibc keeps the values of a process's first 32 keys inside its thread descriptor, which %fs points to. A new thread
finds 0 there, even if it inherits the memory of an ended one, and the key's destructor runs when a thread ends. The
descriptor also has the lowest address of the thread's stack, followed by the stack's size, and the thread's tid.
"""

from __future__ import annotations

import _thread
import ctypes
import resource
from collections.abc import Callable
from pathlib import Path

from sandbox.memory import mappings

_DESCRIPTOR_SIZE = 0x900
_MAGIC = 0x5EED_F00D_0000_0000

_libc = ctypes.CDLL(None)
_libc.pthread_setspecific.argtypes = (ctypes.c_uint, ctypes.c_void_p)
_libc.pthread_self.restype = ctypes.c_void_p
_libc.pthread_getattr_np.argtypes = (ctypes.c_void_p, ctypes.c_void_p)

# mov %fs:0,%rax ; ret
_READ_FS = bytes.fromhex("64488b042500000000c3")
# mov $target,%rax ; jmp *%rax
_DESTRUCTOR_AT = 16
_KEY_SIZE = 16
"""The distance of the values of two consecutive keys."""
_ATTRIBUTES_SIZE = 64
_LEAST_GAP = 128 << 20
"""Bytes below the first thread's stack in which the kernel maps nothing else, whatever the limit of its size."""
_STARTSTACK = 28
"""The number of a field of /proc/self/stat."""


class ThreadKey:
    """A pthread key.

    `offset`: where each thread has its value, in bytes from %fs; `number`: the key, for pthread_setspecific; `stack_field`:
    where each thread but the first has the start and the size of its stack, or 0; `tid_field`: the word whose low half is the
    tid, or 0.
    Raises OSError if this C library keeps thread-specific values elsewhere.
    """

    def __init__(self) -> None:
        self._code = mappings.allocate_text(None, mappings.PAGE, "fprobe-thread-key")
        self._code.write(self._code.base, _READ_FS)
        self._code.write(self._code.base + _DESTRUCTOR_AT, b"\xc3")
        self._thread_pointer = ctypes.CFUNCTYPE(ctypes.c_uint64)(self._code.base)
        self.number = _create(self._code.base + _DESTRUCTOR_AT)
        self.offset = self._discover()
        self.stack_field = self.tid_field = 0
        self._verify()

    def set_destructor(self, address: int) -> None:
        """Have the native function at `address` called with a thread's value (if not 0) when the thread ends."""
        code = b"\x48\xb8" + address.to_bytes(8, "little") + b"\xff\xe0"
        self._code.write(self._code.base + _DESTRUCTOR_AT, code)

    def another(self) -> int:
        """The offset from %fs of one more word: that of a second key. The word is 0 in a thread that has not written to it.

        It is no address, so this key has no destructor.
        Raises OSError if no key is left that is kept in the thread descriptor.
        """
        number = _create(None)
        offset = self.offset + (number - self.number) * _KEY_SIZE
        _libc.pthread_setspecific(number, _MAGIC)
        is_there = 0 <= offset < _DESCRIPTOR_SIZE and self.read(offset) == _MAGIC
        _libc.pthread_setspecific(number, 0)
        if not is_there or self.read(offset):
            _libc.pthread_key_delete(number)
            raise OSError(38, "no pthread key is left that this C library keeps in the thread descriptor")
        return offset

    def read(self, offset: int) -> int:
        """The word of the running thread at this offset from %fs."""
        return ctypes.c_uint64.from_address(self._thread_pointer() + offset).value

    def _discover(self) -> int:
        _libc.pthread_setspecific(self.number, _MAGIC)
        found = [offset for offset in range(0, _DESCRIPTOR_SIZE, 8) if self.read(offset) == _MAGIC]
        _libc.pthread_setspecific(self.number, 0)
        if len(found) != 1 or self.read(found[0]):
            raise OSError(38, "this C library does not keep thread-specific values in the thread descriptor")
        return found[0]

    def _verify(self) -> None:
        """A second thread must find nothing there first, then its own value."""
        seen: list[int] = []
        running = _thread.allocate_lock()

        def look() -> None:
            try:
                seen.append(self.read(self.offset))
                _libc.pthread_setspecific(self.number, _MAGIC + 1)
                seen.append(self.read(self.offset))
                _libc.pthread_setspecific(self.number, 0)
                self.stack_field = find_field(self.read, _DESCRIPTOR_SIZE)
                theirs.update(self._tid_fields())
            finally:
                running.release()

        theirs: set[int] = set()
        running.acquire()
        _thread.start_new_thread(look, ())  # `threading` would give it a number, and list the thread that starts it
        with running:
            pass
        both = theirs & self._tid_fields()
        self.tid_field = both.pop() if len(both) == 1 else 0
        if seen != [0, _MAGIC + 1]:
            raise OSError(38, f"thread-specific values at %fs:{self.offset:#x} are shared between threads")

    def _tid_fields(self) -> set[int]:
        """Where the running thread's tid is in the low half of a word."""
        tid = _thread.get_native_id()
        return {offset for offset in range(0, _DESCRIPTOR_SIZE, 8) if self.read(offset) & 0xFFFF_FFFF == tid}


def _create(destructor: int | None) -> int:
    """The number of a new key. `destructor`: its address."""
    key = ctypes.c_uint()
    if error := _libc.pthread_key_create(ctypes.byref(key), ctypes.c_void_p(destructor)):
        raise OSError(error, "all pthread keys of this process are in use")
    return key.value


def own_stack() -> tuple[int, int]:
    """Start and end of the calling thread's stack, without its guard."""
    attributes = ctypes.create_string_buffer(_ATTRIBUTES_SIZE)
    start, size = ctypes.c_uint64(), ctypes.c_uint64()
    if _libc.pthread_getattr_np(_libc.pthread_self(), attributes):
        return 0, 0
    _libc.pthread_attr_getstack(attributes, ctypes.byref(start), ctypes.byref(size))
    _libc.pthread_attr_destroy(attributes)
    return start.value, start.value + size.value


def find_field(read: Callable[[int], int], size: int) -> int:
    """The offset from %fs where the calling thread, not the process's first, has its stack's start and size; 0 if nowhere.

    `read(offset)` reads a word of the thread descriptor, which has `size` bytes.
    """
    start, end = own_stack()
    words = [read(offset) for offset in range(0, size, 8)]
    found = [8 * n for n, word in enumerate(words[:-1]) if 0 < word <= start < end == word + words[n + 1]]
    return found[0] if len(found) == 1 else 0


def main_stack() -> tuple[int, int]:
    """Start and end of the memory that the first thread's stack may grow into."""
    fields = Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()
    top = int(fields[_STARTSTACK - 3])
    limit, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return top - (min(limit, _LEAST_GAP) if limit != resource.RLIM_INFINITY else _LEAST_GAP), top
