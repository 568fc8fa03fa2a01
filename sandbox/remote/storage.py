"""Thread-local storage for a thread that is made without the C library, as the C library would fill it."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from sandbox.elf import tables as elf
from sandbox.remote.process import Image, RemoteProcess
from sandbox.remote.refusals import Refused

_PT_TLS = 7
_LINK = struct.Struct("<4Q")
_DEBUG_MAP = 8
"""Offset of the list of libraries in `struct r_debug`."""
_GUARDS_AT, _GUARDS = 0x28, 16
"""The stack guard and the pointer guard, of the x86-64 ABI's TCB."""
_KEY, _KEYS = 16, 32
"""Bytes of a key's data, and the number of those that are in `struct pthread` itself."""
_LEAST, _ALIGNMENT = 64, 4096
_LARGEST = 1 << 30
DESCRIPTIONS = (
    *("_thread_db_link_map_l_tls_offset", "_thread_db_sizeof_pthread", "_thread_db_pthread_tid"),
    "_thread_db_pthread_specific",
)
"""Data of glibc that tell debuggers the layout of its structures: 32-bit numbers."""


class Layout(NamedTuple):
    """Of glibc's structures: the size of `struct pthread`, and offsets in it and in `struct link_map`.

    `specific`: of the data of the first keys, which are before the table of all.
    """

    pthread: int
    thread_id: int
    tls_offset: int
    specific: int


def layout_of(process: RemoteProcess, libc: Mapping[str, int]) -> Layout:
    """The layout that the process's glibc describes. Raises Refused if it does not."""
    missing = [name for name in DESCRIPTIONS if name not in libc]
    if missing:
        raise Refused(
            f"the C library of process {process.pid} is not glibc, or is too old: it does not export {missing[0]}"
        )

    def number(name: str, index: int) -> int:
        return int(struct.unpack_from("<I", process.read(libc[name] + 4 * index, 4))[0])

    size, thread_id, offset = number(DESCRIPTIONS[1], 0), number(DESCRIPTIONS[2], 2), number(DESCRIPTIONS[0], 2)
    return Layout(size, thread_id, offset, number(DESCRIPTIONS[3], 2) - _KEY * _KEYS)


def image_of(process: RemoteProcess, loader: Image, layout: Layout) -> bytes:
    """The bytes below the thread pointer: the initial values of the variables of every library."""
    found = loader.addresses(["_r_debug"])
    if not found:
        raise Refused(f"the dynamic loader of process {process.pid} does not show the libraries")
    blocks = list(_blocks(process, process.word(found["_r_debug"] + _DEBUG_MAP), layout))
    below = max([offset for offset, _ in blocks] + [_LEAST])
    image = bytearray(-(-below // _ALIGNMENT) * _ALIGNMENT + _ALIGNMENT)
    for offset, data in blocks:
        image[len(image) - offset : len(image) - offset + len(data)] = data
    return bytes(image)


def block_of(layout: Layout, pointer: int, guards: bytes) -> bytes:
    """The `struct pthread` at `pointer`. `guards`: those of another thread."""
    block = bytearray(layout.pthread)
    struct.pack_into("<3Q", block, 0, pointer, 0, pointer)
    block[_GUARDS_AT : _GUARDS_AT + _GUARDS] = guards
    return bytes(block)


def guards(process: RemoteProcess, pointer: int) -> bytes:
    """The guards of the thread whose thread pointer is given."""
    return process.read(pointer + _GUARDS_AT, _GUARDS)


def _blocks(process: RemoteProcess, link: int, layout: Layout) -> Iterator[tuple[int, bytes]]:
    """Offset below the thread pointer, and initial values, of each library with static thread-local storage."""
    while link:
        base, name_at, _, following = _LINK.unpack(process.read(link, _LINK.size))
        offset = process.word(link + layout.tls_offset)
        if 0 < offset < _LARGEST:
            for segment in _file(process, name_at).segments():
                if segment.type == _PT_TLS:
                    yield offset, process.read(base + segment.address, segment.file_size)
        link = following


def _file(process: RemoteProcess, name_at: int) -> elf.ElfFile:
    path = process.read(name_at, 4096 - name_at % 4096).split(b"\0", 1)[0].decode(errors="surrogateescape")
    image = process.file_named(path)
    if image is None:
        raise Refused(f"{path or 'the program'} of process {process.pid} was replaced on disk; restart the process")
    return image
