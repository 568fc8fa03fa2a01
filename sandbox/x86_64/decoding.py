"""Instructions as text, by capstone's library without its Python package, which takes 30 ms to import every architecture."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from capstone import Cs

_ARCH_X86, _MODE_64 = 3, 1 << 3
_KNOWN_VERSION = 5
"""The major version of the library whose records are laid out as below."""


class Decoded(NamedTuple):
    """An instruction; `address` and `size` in bytes."""

    address: int
    size: int
    mnemonic: str
    operands: str


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("id", ctypes.c_uint),
        ("address", ctypes.c_uint64),
        ("size", ctypes.c_uint16),
        ("bytes", ctypes.c_ubyte * 24),
        ("mnemonic", ctypes.c_char * 32),
        ("operands", ctypes.c_char * 160),
        ("detail", ctypes.c_void_p),
    )


def decoded(code: bytes, address: int = 0) -> Iterator[Decoded]:
    """The instructions of `code` at `address`, up to the first invalid one."""
    library = _library()
    if library is None:
        return _by_package(code, address)
    return _by_library(library, code, address)


def _by_library(library: Any, code: bytes, address: int) -> Iterator[Decoded]:
    found = ctypes.POINTER(_Instruction)()
    count = library.cs_disasm(_handle(library), code, len(code), ctypes.c_uint64(address), 0, ctypes.byref(found))
    try:
        for index in range(count):
            each = found[index]
            yield Decoded(each.address, each.size, each.mnemonic.decode(), each.operands.decode())
    finally:
        if count:
            library.cs_free(found, count)


def _by_package(code: bytes, address: int) -> Iterator[Decoded]:
    return map(Decoded._make, decoder().disasm_lite(code, address))


@cache
def decoder(detail: bool = False) -> Cs:
    """The package's own disassembler, which is quicker once it is imported; with details on, five times as slow."""
    import capstone

    machine = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    machine.detail = detail
    return machine


@cache
def _library() -> Any:
    """The library in capstone's package; None if it is elsewhere or of an unknown version."""
    package = find_spec("capstone")
    path = Path(str(package.origin)).parent / "lib" / "libcapstone.so" if package else None
    if path is None or not path.exists():
        return None
    library = ctypes.CDLL(str(path))
    library.cs_disasm.restype = ctypes.c_size_t
    library.cs_disasm.argtypes = (
        ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p,
    )  # fmt: skip
    library.cs_free.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return library if library.cs_version(None, None) >> 8 == _KNOWN_VERSION else None


@cache
def _handle(library: Any) -> int:
    handle = ctypes.c_size_t()
    if library.cs_open(_ARCH_X86, _MODE_64, ctypes.byref(handle)):
        raise MemoryError("capstone cannot be opened")
    return handle.value
