"""Names of C++ and Rust, demangled: by the system's C++ library, a rule for older names of Rust, and the package pydemumble.

pydemumble, which the extra `demangle` installs, knows Rust's names of version 0 (`_R...`); without it they stay as they are.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable
from typing import Any

_LIBRARIES = ("libstdc++.so.6", "libc++abi.so.1")
_OPENING, _CLOSING = "(<[{", ")>]}"
_CLONE = re.compile(r"\.[A-Za-z_]\w*(?:\.\d+)*|\.\d+")
_HASH = re.compile(r"17h[0-9a-f]{16}E")
"""What ends an older name of Rust."""
_ESCAPE = re.compile(r"\$(\w+)\$|\.\.")
_ESCAPED = {"SP": "@", "BP": "*", "RF": "&", "LT": "<", "GT": ">", "LP": "(", "RP": ")", "C": ","}
MANGLED = ("_Z", "_R")
"""The beginnings of mangled names of C++ and Rust."""


@functools.lru_cache(maxsize=65536)
def demangled(symbol: str) -> str:
    """The name in full as its programmer would write it; '' if it is not mangled, or cannot be demangled.

    A part or a copy that the compiler has made of the function has a suffix: `f(int) [clone .part.0]`. The version of an old
    symbol is kept: `f(int)@VERS_1`.
    """
    if not symbol.startswith(MANGLED):
        return ""
    plain, at, version = symbol.partition("@")
    rust = _of_older_rust(plain)
    head, _, clones = plain.partition(".") if not rust else (plain, "", "")
    written = rust or (_of_cxx(head) if head.startswith("_Z") else "") or _by_package(head)
    if not written:
        return ""
    marks = "".join(f" [clone {each}]" for each in _CLONE.findall(f".{clones}")) if clones else ""
    return f"{written}{marks}{at}{version}"


def demanglers() -> str:
    """Which of what demangles names is there: the same names have other forms without it."""
    return f"{bool(_functions())} {_package() is not None}"


def parameter_count(symbol: str) -> int | None:
    """The number of parameters in a mangled name, without `...`; None if it has none or cannot be taken apart."""
    written = _of_cxx(symbol) if symbol.startswith("_Z") else ""
    end = written.rfind(")")
    depth, commas = 0, 0
    for at in range(end, -1, -1):
        depth += (written[at] in _CLOSING) - (written[at] in _OPENING)
        commas += written[at] == "," and depth == 1
        if not depth:
            inside = written[at + 1 : end]
            return commas + bool(inside) - inside.endswith("...")
    return None


def _of_cxx(symbol: str) -> str:
    """A name of C++ as the C++ library writes it; '' if that is not known."""
    functions = _functions()
    if functions is None:
        return ""
    demangle, free = functions
    address = demangle(symbol.encode("utf-8", "surrogateescape"), None, None, None)
    if not address:
        return ""
    try:
        return ctypes.string_at(address).decode("utf-8", "surrogateescape")
    finally:
        free(address)


@functools.cache
def _functions() -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    """`__cxa_demangle` and `free`; None if there is no C++ library. Calls keep the GIL, which is quicker than they are."""
    for name in _LIBRARIES:
        try:
            demangle = ctypes.PyDLL(name)["__cxa_demangle"]
        except (OSError, AttributeError):
            continue
        demangle.argtypes, demangle.restype = (ctypes.c_char_p, *[ctypes.c_void_p] * 3), ctypes.c_void_p
        free = ctypes.PyDLL(None)["free"]
        free.argtypes, free.restype = [ctypes.c_void_p], None
        return demangle, free
    return None


def _of_older_rust(symbol: str) -> str:
    """`core::fmt::write` of `_ZN4core3fmt5write17h...E`; '' if that is no name of Rust's older scheme."""
    found = _HASH.search(symbol) if symbol.startswith("_ZN") else None
    if found is None or symbol[found.end() :].strip("._0123456789abcdefghijklmnopqrstuvwxyz"):
        return ""
    at, parts = len("_ZN"), []
    while at < found.start():
        digits = re.match(r"\d+", symbol[at:])
        if digits is None:
            return ""
        at += len(digits[0]) + int(digits[0])
        part = symbol[at - int(digits[0]) : at]
        parts.append(_ESCAPE.sub(_unescaped, part[1:] if part.startswith("_$") else part))
    return "::".join(parts) if at == found.start() else ""


def _unescaped(found: re.Match[str]) -> str:
    code = found[1]
    if code is None:
        return "::"
    if code[:1] == "u" and re.fullmatch(r"u[0-9a-f]{1,6}", code) and int(code[1:], 16) < 0x110000:
        return chr(int(code[1:], 16))
    return _ESCAPED.get(code, found[0])


def _by_package(symbol: str) -> str:
    """A name by pydemumble; '' if that is not installed, or does not know it."""
    demangle = _package()
    written = str(demangle(symbol) or "") if demangle else ""
    return "" if written == symbol else written


@functools.cache
def _package() -> Callable[[str], Any] | None:
    try:
        import pydemumble
    except ImportError:
        return None
    demangle: Callable[[str], Any] = pydemumble.demangle
    return demangle
