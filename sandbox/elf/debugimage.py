"""ELF images with only symbols and unwind information, for the GDB JIT interface."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_ET_EXEC, _EM_X86_64 = 2, 62
_PROGBITS, _SYMTAB, _STRTAB, _NOBITS = 1, 2, 3, 8
_ALLOC, _EXECINSTR = 2, 4
_GLOBAL_FUNCTION = 0x12


class CodeSymbol(NamedTuple):
    """A stretch of code with a name; address and size in bytes."""

    name: str
    address: int
    size: int


class _Section(NamedTuple):
    name: str
    type: int
    flags: int
    address: int
    data: bytes
    size: int
    link: int = 0
    info: int = 0
    entry_size: int = 0


def debug_image(start: int, size: int, symbols: Sequence[CodeSymbol], frames: bytes, frames_address: int) -> bytes:
    """The image for `size` bytes of code at `start`, with its symbols and the address of its .eh_frame section."""
    encoded = [symbol.name.encode("utf-8", "surrogateescape") + b"\0" for symbol in symbols]
    names = b"\0" + b"".join(encoded)
    table = _SYMBOL.pack(0, 0, 0, 0, 0, 0)
    offset = 1
    for symbol, name in zip(symbols, encoded, strict=True):
        table += _SYMBOL.pack(offset, _GLOBAL_FUNCTION, 0, 1, symbol.address, symbol.size)
        offset += len(name)
    return _assembled(
        [
            _Section(".text", _NOBITS, _ALLOC | _EXECINSTR, start, b"", size),
            _Section(".eh_frame", _PROGBITS, _ALLOC, frames_address, frames, len(frames)),
            _Section(".symtab", _SYMTAB, 0, 0, table, len(table), link=4, info=1, entry_size=_SYMBOL.size),
            _Section(".strtab", _STRTAB, 0, 0, names, len(names)),
        ]
    )


def _assembled(sections: Sequence[_Section]) -> bytes:
    """Header, contents, and the table of sections, with the section of their names last."""
    names = b"\0" + b"".join(section.name.encode() + b"\0" for section in sections) + b".shstrtab\0"
    everything = [*sections, _Section(".shstrtab", _STRTAB, 0, 0, names, len(names))]
    body, headers, name_offset = b"", [_SECTION.pack(*[0] * 10)], 1
    for section in everything:
        body += bytes(-(_HEADER.size + len(body)) % 8)
        place = _HEADER.size + len(body)
        body += section.data
        headers.append(_header_of(section, name_offset, place))
        name_offset += len(section.name) + 1
    body += bytes(-(_HEADER.size + len(body)) % 8)
    table = _HEADER.size + len(body)
    identity = b"\x7fELF\x02\x01\x01" + bytes(9)
    count = len(headers)
    head = _HEADER.pack(
        identity, _ET_EXEC, _EM_X86_64, 1, 0, 0, table, 0, _HEADER.size, 0, 0, _SECTION.size, count, count - 1
    )
    return head + body + b"".join(headers)


def _header_of(section: _Section, name: int, place: int) -> bytes:
    return _SECTION.pack(
        name, section.type, section.flags, section.address, place, section.size,
        section.link, section.info, 8, section.entry_size,
    )  # fmt: skip
