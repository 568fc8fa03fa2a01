"""Compression of trace.dat: the algorithms by their names in the file, zlib and zstd.

zlib is Python's; zstd is the shared library libzstd, if the system has it, as Debian's trace-cmd does, which has no zlib.
"""

from __future__ import annotations

import ctypes
import functools
import zlib
from typing import Protocol

NONE = "none"
NAMES = ("zlib", "zstd")
LARGEST = 1 << 30
"""Bytes of the largest section or chunk that is decompressed; a damaged file may claim any size."""
_ZSTD_LEVEL = 3
_NO_SIZE = (1 << 64) - 2
"""From here on, what ZSTD_getFrameContentSize() returns is no size."""


class Algorithm(Protocol):
    """A compression algorithm. `name` and `version`: as in the header of a trace.dat."""

    name: str
    version: str

    def compress(self, data: bytes, /) -> bytes:
        """The data, compressed."""

    def decompress(self, data: bytes, size: int, /) -> bytes:
        """The original data, of `size` bytes. Raises ValueError for anything else."""


class Zlib:
    """The algorithm zlib."""

    name = "zlib"
    version = zlib.ZLIB_VERSION

    def compress(self, data: bytes) -> bytes:
        """The data, compressed."""
        return zlib.compress(data)

    def decompress(self, data: bytes, size: int) -> bytes:
        """The original data, of `size` bytes. Raises ValueError for anything else."""
        stream = zlib.decompressobj()
        try:
            found = stream.decompress(data, _checked(size) or 1)
        except zlib.error as error:
            raise ValueError(f"damaged compressed data: {error}") from None
        return _of_size(found, size)


class Zstd:
    """The algorithm zstd. Raises OSError if there is no libzstd."""

    name = "zstd"

    def __init__(self) -> None:
        from ctypes.util import find_library

        path = find_library("zstd")
        if path is None:
            raise OSError("compression zstd needs the library libzstd, which was not found: apt-get install libzstd1")
        self._library = library = ctypes.CDLL(path)
        for function in (library.ZSTD_compressBound, library.ZSTD_compress, library.ZSTD_decompress):
            function.restype = ctypes.c_size_t
        library.ZSTD_compressBound.argtypes = [ctypes.c_size_t]
        block = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)
        library.ZSTD_compress.argtypes = (*block, ctypes.c_int)
        library.ZSTD_decompress.argtypes = block
        library.ZSTD_getFrameContentSize.restype = ctypes.c_uint64
        library.ZSTD_getFrameContentSize.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        library.ZSTD_isError.argtypes = [ctypes.c_size_t]
        library.ZSTD_versionString.restype = ctypes.c_char_p
        self.version = library.ZSTD_versionString().decode()

    def compress(self, data: bytes) -> bytes:
        """The data, compressed."""
        buffer = ctypes.create_string_buffer(self._library.ZSTD_compressBound(len(data)))
        return self._taken(buffer, self._library.ZSTD_compress(buffer, len(buffer), data, len(data), _ZSTD_LEVEL))

    def decompress(self, data: bytes, size: int) -> bytes:
        """The original data, of `size` bytes. Raises ValueError for anything else."""
        stored = self._library.ZSTD_getFrameContentSize(data, len(data))
        if stored < _NO_SIZE and stored != _checked(size):  # before memory is allocated for it
            raise ValueError(f"damaged compressed data: {stored} bytes; {size} expected")
        buffer = ctypes.create_string_buffer(_checked(size) or 1)
        return _of_size(self._taken(buffer, self._library.ZSTD_decompress(buffer, size, data, len(data))), size)

    def _taken(self, buffer: ctypes.Array[ctypes.c_char], size: int) -> bytes:
        if self._library.ZSTD_isError(size):
            raise ValueError("damaged compressed data")
        return ctypes.string_at(buffer, size)


def _checked(size: int) -> int:
    if size > LARGEST:
        raise ValueError(f"damaged compressed data: {size} bytes claimed; the maximum is {LARGEST}")
    return size


def _of_size(found: bytes, size: int) -> bytes:
    if len(found) != size:
        raise ValueError(f"damaged compressed data: {len(found)} bytes; {size} expected")
    return found


@functools.cache
def algorithm(name: str) -> Algorithm | None:
    """The algorithm of a name; None for `none`. Raises ValueError for an unknown name, OSError if its library is missing."""
    if name == NONE:
        return None
    if name not in NAMES:
        raise ValueError(f"compression {name} is not supported; give {', '.join((NONE, *NAMES))}")
    return Zlib() if name == "zlib" else Zstd()
