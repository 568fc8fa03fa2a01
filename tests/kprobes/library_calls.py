"""Functions of libraries that can be called without any preparation, and what their first instruction is."""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from kprobes.place import original_text
from sandbox.images.process_text import symbol_named
from sandbox.x86_64.instruction import Instruction, decode

TEXT = bytes(range(1, 200)) + b"\0"
_U64, _INT, _DOUBLE, _BYTES = ctypes.c_uint64, ctypes.c_int, ctypes.c_double, ctypes.c_char_p


class LibraryCall(NamedTuple):
    """`name`: as probes take it. `call`: a call whose result is always the same."""

    name: str
    call: Callable[[], Any]

    @property
    def address(self) -> int:
        return symbol_named(self.name).address

    def first(self) -> Instruction:
        return decode(original_text(self.address, 15), self.address)


# library -> name, type of the result, arguments
_CALLS: dict[str, list[tuple[str, Any, list[Any]]]] = {
    "z": [
        ("adler32", _U64, [_U64(1), TEXT, len(TEXT)]),
        ("adler32_z", _U64, [_U64(1), TEXT, len(TEXT)]),
        ("adler32_combine", _U64, [_U64(77), _U64(99), _U64(1234)]),
        ("crc32", _U64, [_U64(0), TEXT, len(TEXT)]),
        ("crc32_z", _U64, [_U64(0), TEXT, len(TEXT)]),
        ("crc32_combine", _U64, [_U64(77), _U64(99), _U64(1234)]),
        ("compressBound", _U64, [_U64(100000)]),
        ("zError", _BYTES, [-3]),
        ("zlibVersion", _BYTES, []),
        ("zlibCompileFlags", _U64, []),
        ("deflateReset", _INT, [None]),
        ("inflateReset", _INT, [None]),
        ("inflateEnd", _INT, [None]),
        ("deflateEnd", _INT, [None]),
        ("gzerror", _BYTES, [None, None]),
        ("gzclose", _INT, [None]),
    ],
    "m": [
        ("cbrt", _DOUBLE, [_DOUBLE(27.5)]),
        ("hypot", _DOUBLE, [_DOUBLE(3), _DOUBLE(4)]),
        ("ldexp", _DOUBLE, [_DOUBLE(1.5), 7]),
        ("erf", _DOUBLE, [_DOUBLE(0.3)]),
        ("fabs", _DOUBLE, [_DOUBLE(-0.3)]),
        ("nextafter", _DOUBLE, [_DOUBLE(0.3), _DOUBLE(4)]),
        ("ilogb", _INT, [_DOUBLE(123456.0)]),
        ("lround", ctypes.c_long, [_DOUBLE(123456.5)]),
        ("tgamma", _DOUBLE, [_DOUBLE(4.5)]),
        ("remainder", _DOUBLE, [_DOUBLE(10.5), _DOUBLE(3)]),
    ],
    "sqlite3": [
        ("sqlite3_libversion", _BYTES, []),
        ("sqlite3_libversion_number", _INT, []),
        ("sqlite3_complete", _INT, [b"select 1;"]),
        ("sqlite3_stricmp", _INT, [b"Select", b"sElecu"]),
        ("sqlite3_strnicmp", _INT, [b"Select", b"sElecu", 5]),
        ("sqlite3_strglob", _INT, [b"*a*b", b"xxaxxb"]),
        ("sqlite3_strlike", _INT, [b"%a%b", b"xxaxxb", 0]),
        ("sqlite3_errstr", _BYTES, [5]),
        ("sqlite3_threadsafe", _INT, []),
        ("sqlite3_compileoption_used", _INT, [b"THREADSAFE=1"]),
        ("sqlite3_keyword_count", _INT, []),
        ("sqlite3_keyword_check", _INT, [b"select", 6]),
        ("sqlite3_value_type", _INT, [b"\0" * 64]),
        ("sqlite3_errmsg", _BYTES, [None]),
        ("sqlite3_changes", _INT, [None]),
    ],
    "c": [
        ("abs", _INT, [-7]),
        ("labs", ctypes.c_long, [-7]),
        ("ffs", _INT, [48]),
        ("htonl", ctypes.c_uint32, [0x01020304]),
        ("htons", ctypes.c_uint16, [0x0102]),
        ("atoi", _INT, [b"1234"]),
        ("strtoul", _U64, [b"1234", None, 10]),
        ("a64l", ctypes.c_long, [b"abcd"]),
        ("toupper", _INT, [97]),
        ("isalpha", _INT, [97]),
        ("toascii", _INT, [200]),
        ("strverscmp", _INT, [b"a12", b"a9"]),
        ("inet_addr", ctypes.c_uint32, [b"10.1.2.3"]),
        ("gnu_get_libc_version", _BYTES, []),
        ("sysconf", ctypes.c_long, [30]),
        ("getpagesize", _INT, []),
        ("swab", None, [b"abcd", ctypes.create_string_buffer(8), 4]),
        ("wctob", _INT, [65]),
        ("strsignal", _BYTES, [9]),
    ],
}
_FILES = {"z": "libz.so.1", "m": "libm.so.6", "sqlite3": "libsqlite3.so.0", "c": "libc.so.6"}


@cache
def library_calls() -> list[LibraryCall]:
    """All that this machine has, and that can be probed by name."""
    found = []
    for short, calls in _CALLS.items():
        try:
            library = ctypes.CDLL(_FILES[short])
        except OSError:
            continue
        for name, result, arguments in calls:
            made = _library_call(library, short, name, result, arguments)
            if made is not None:
                found.append(made)
    return found


def _library_call(library: ctypes.CDLL, short: str, name: str, result: Any, arguments: list[Any]) -> LibraryCall | None:
    function = getattr(library, name, None)
    symbol = symbol_named(f"lib{short}:{name}")
    if function is None or symbol is None or ctypes.cast(function, ctypes.c_void_p).value != symbol.address:
        return None  # a function chosen when the program starts
    function.restype = result
    return LibraryCall(f"lib{short}:{name}", lambda: function(*arguments))


def kind_of(insn: Instruction) -> str:
    """The class of a first instruction: what is done to move it, and whether a jump has to absorb what is behind it."""
    memory = "rip-relative " if "rip" in insn.text else ""
    size = "long" if insn.length >= 5 else "short"
    return f"{memory}{insn.text.split()[0]}, {size}"


def one_of_each_kind() -> dict[str, LibraryCall]:
    """By kind, ascending."""
    found: dict[str, LibraryCall] = {}
    for one in library_calls():
        found.setdefault(kind_of(one.first()), one)
    return dict(sorted(found.items()))
