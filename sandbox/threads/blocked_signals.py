"""Finding the threads that block a signal, in /proc.

/proc is read natively, with the GIL held: there may be many threads, and releasing the GIL for each read would take long.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from sandbox.native import *
from sandbox.x86_64.syscalls import SYS_CLOSE, SYS_GETDENTS64, SYS_OPEN, SYS_OPENAT, SYS_READ

if TYPE_CHECKING:
    from sandbox.native.native_image import NativeImage

_O_DIRECTORY, _O_CLOEXEC = 0o200000, 0o2000000
_RECORD_SIZE, _RECORD_NAME = 16, 19
"""Offsets in a struct linux_dirent64."""
_ENTRIES, _STATUS = 8192, 4096
_MOST = 64
"""Threads that are reported at once."""


@struct
class Reading(Structure):
    """The searched strings, and memory to read into."""

    directory: array[u8, 16]
    file: array[u8, 8]
    key: array[u8, 16]
    path: array[u8, 32]
    found: array[u64, 64]
    entries: array[u8, 8192]
    status: array[u8, 4096]


@native(inline=True)
def address_of(byte: ptr[u8]) -> i64:
    return cast(i64, byte)


@native
def make_path(reading: ptr[Reading], name: ptr[u8]) -> u64:
    """`name` and the file in it, where `name` is a number: that, or 0."""
    number: u64 = 0
    length: u64 = 0
    while name[length] >= 48 and name[length] <= 57 and length < 16:
        number = number * 10 + cast(u64, name[length] - 48)
        reading.path[length] = name[length]
        length += 1
    for index in range(8):
        reading.path[length + index] = reading.file[index]
    return number


@native
def is_key(reading: ptr[Reading], at: u64) -> bool_:
    index: u64 = 0
    while reading.key[index] != 0:
        if reading.status[at + index] != reading.key[index]:
            return False
        index += 1
    return True


@native
def blocked_by(reading: ptr[Reading], size: u64) -> u64:
    """The set in the status that has been read; empty if it does not say."""
    start: u64 = 0
    while start + 32 < size and not is_key(reading, start):
        start += 1
    if start + 32 >= size:
        return 0
    while reading.status[start] != 9:
        start += 1
    mask: u64 = 0
    for index in range(16):
        digit = cast(u64, reading.status[start + 1 + index])
        mask = mask << 4 | (digit - 48 if digit <= 57 else digit - 87)
    return mask


@native
def blocks(reading: ptr[Reading], directory: i64, signal: u64) -> bool_:
    """Whether the thread of the prepared path blocks the signal. A thread that has ended does not."""
    file = syscall(SYS_OPENAT, directory, address_of(addressof(reading.path[0])), _O_CLOEXEC, 0, 0, 0)
    if file < 0:
        return False
    size = syscall(SYS_READ, file, address_of(addressof(reading.status[0])), _STATUS, 0, 0, 0)
    syscall(SYS_CLOSE, file, 0, 0, 0, 0, 0)
    return size > 0 and blocked_by(reading, cast(u64, size)) >> (signal - 1) & 1 != 0


@native
def look_at(reading: ptr[Reading], directory: i64, size: u64, signal: u64, count: u64) -> u64:
    """Check the threads of the entries just read; returns the number of threads found so far."""
    at: u64 = 0
    while at < size:
        number = make_path(reading, addressof(reading.entries[at + _RECORD_NAME]))
        if number != 0 and count < _MOST and blocks(reading, directory, signal):
            reading.found[count] = number
            count += 1
        low = cast(u64, reading.entries[at + _RECORD_SIZE])
        at += low | cast(u64, reading.entries[at + _RECORD_SIZE + 1]) << 8
    return count


@native
def threads_blocking_signal(reading: ptr[Reading], signal: u64) -> i64:
    """How many threads of this process block it; their numbers are in `found`. Less than 0: an error."""
    path = address_of(addressof(reading.directory[0]))
    directory = syscall(SYS_OPEN, path, _O_DIRECTORY | _O_CLOEXEC, 0, 0, 0, 0)
    if directory < 0:
        return directory
    count: u64 = 0
    size: i64 = 1
    while size > 0:
        entries = address_of(addressof(reading.entries[0]))
        size = syscall(SYS_GETDENTS64, directory, entries, _ENTRIES, 0, 0, 0)
        if size > 0:
            count = look_at(reading, directory, cast(u64, size), signal, count)
    syscall(SYS_CLOSE, directory, 0, 0, 0, 0, 0)
    return cast(i64, count)


def threads_blocking(image: NativeImage, signal: int) -> list[int]:
    """The native ids of threads of this process that block a signal, of very many the first."""
    reading = Reading.ctypes()
    for field, text in (("directory", b"/proc/self/task"), ("file", b"/status"), ("key", b"\nSigBlk:")):
        getattr(reading, field)[: len(text)] = text
    count = image.call("threads_blocking_signal", ctypes.addressof(reading), signal)
    return list(reading.found[: max(count, 0)])
