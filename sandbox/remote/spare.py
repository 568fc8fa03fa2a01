"""Memory of a process that nothing there uses: the rest of the last page of a library's variables."""

from __future__ import annotations

from typing import NamedTuple

from sandbox.elf import tables as elf
from sandbox.remote.process import RemoteProcess
from sandbox.x86_64.remote_thread import PAGE

_NEVER_UNLOADED = ("libc.so", "libm.so", "libpython", "libstdc++", "libgcc_s", "libpthread", "libdl")
"""Not the program, whose heap may follow, nor the loader, which uses the rest of its own page itself."""
_WRITABLE = 2
_ALIGNMENT = 64


class Spare(NamedTuple):
    """An address, and what is there."""

    address: int
    contents: bytes


def find(process: RemoteProcess, size: int) -> Spare | None:
    """Memory of `size` bytes; None if no library has so much."""
    for image in process.each_image(lambda name: name.startswith(_NEVER_UNLOADED)):
        for segment in image.file.segments():
            if segment.type == elf.PT_LOAD and segment.flags & _WRITABLE and segment.memory_size > segment.file_size:
                start = -(-(image.base + segment.address + segment.memory_size) // _ALIGNMENT) * _ALIGNMENT
                end = -(-start // PAGE) * PAGE
                if end - start >= size and process.is_writable(start):
                    return Spare(start, process.read(start, size))
    return None
