"""Instructions as text, by capstone's library without its Python package, which takes 30 ms to import every architecture."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from sandbox.process.packages import package_file

if TYPE_CHECKING:
    from capstone import Cs

_ARCH_X86, _MODE_64 = 3, 1 << 3
_ALL_BITS = (1 << 64) - 1
_KNOWN_VERSION = 5
"""The major version of the library whose records are laid out as below."""


class Decoded(NamedTuple):
    """An instruction; `address` and `size` in bytes."""

    address: int
    size: int
    mnemonic: str
    operands: str


_INSTRUCTION = struct.Struct("=I4xQH24x32s160s6xQ")
"""struct cs_insn: id, address, size, bytes, mnemonic, operands, detail."""


def decoded(code: bytes, address: int = 0) -> Iterator[Decoded]:
    """The instructions of `code` at `address`, up to the first invalid one."""
    library = _library()
    if library is None:
        return _by_package(code, address)
    return _by_library(library, code, address)


def first_decoded(code: bytes, address: int) -> Decoded | None:
    """The first instruction of `code` at `address`; None if it is invalid."""
    library = _library()
    found = _by_package(code, address, 1) if library is None else _by_library(library, code, address, 1)
    return next(found, None)


def _by_library(library: Any, code: bytes, address: int, most: int = 0) -> Iterator[Decoded]:
    found = ctypes.c_void_p()
    count = library.cs_disasm(_handle(library), code, len(code), address & _ALL_BITS, most, ctypes.byref(found))
    if not count:
        return iter(())
    records = ctypes.string_at(found.value or 0, count * _INSTRUCTION.size)
    library.cs_free(found, count)
    return map(_read, _INSTRUCTION.iter_unpack(records))


def _read(record: tuple[int, int, int, bytes, bytes, int]) -> Decoded:
    _id, address, size, mnemonic, operands, _detail = record
    name, _nul, _rest = mnemonic.partition(b"\0")
    text, _nul, _rest = operands.partition(b"\0")
    return tuple.__new__(Decoded, (address, size, name.decode(), text.decode()))


def _by_package(code: bytes, address: int, most: int = 0) -> Iterator[Decoded]:
    return map(Decoded._make, decoder().disasm_lite(code, address, most))


@cache
def decoder(detail: bool = False) -> Cs:
    """The package's own disassembler; with `detail`, it describes the operands, too."""
    import capstone

    machine = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    machine.detail = detail
    return machine


@cache
def _library() -> Any:
    """The library in capstone's package; None if it is elsewhere or of an unknown version."""
    package = package_file("capstone")
    path = package.parent / "lib" / "libcapstone.so" if package else None
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
