"""`fprobe disasm FILE.py:HANDLER`: the machine code of a native handler, with its Python source."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fprobe.cli.console import Console

if TYPE_CHECKING:
    from sandbox.symbols.disassembly import Line
    from sandbox.symbols.source_lines import SourceLine

_HANDLER = re.compile(r".+\.py:\w+")


def is_handler(text: str) -> bool:
    """Whether `text` names a handler in a Python file, and not a function of a program."""
    return _HANDLER.fullmatch(text) is not None


def show(console: Console, text: str, limit: int | None, with_source: bool) -> None:
    """Print the code of the handler `FILE.py:NAME`. Raises Failure if there is none, or if it does not compile."""
    from fprobe.cli import native

    handler = native.load(text).entry
    base, lines = _code(native.compile_handler(handler), handler.name)
    console.line(console.bold(f"{handler.name}, native"))
    objects = print_code(console, base, lines[:limit], with_source)
    console.document({"function": handler.name, "loaded": objects})


def print_code(console: Console, base: int, lines: list[Line], with_source: bool) -> list[dict[str, Any]]:
    """Print instructions below their source lines. Returns them for JSON."""
    from sandbox.symbols import source_lines
    from sandbox.symbols.disassembly import listing

    places = [source_lines.at(line.address) if with_source else None for line in lines]
    before = None
    for shown, place in zip(listing(lines, base), places, strict=True):
        if place is not None and place != before:
            console.line(console.dim(f"{Path(place.file).name}:{place.line}: {place.text}"))
            before = place
        console.line(shown)
    return [_object(line, place) for line, place in zip(lines, places, strict=True)]


def _code(image: Any, name: str) -> tuple[int, list[Line]]:
    """The address and the instructions of a function of an image."""
    import ctypes

    from sandbox.symbols.disassembly import disassemble
    from sandbox.symbols.table import symbol_table

    symbol = next(symbol for symbol in image.symbols if symbol.name == name)

    def describe(address: int) -> str | None:
        found = symbol_table.locate(address)
        return str(found) if found else None

    code = ctypes.string_at(symbol.address, symbol.end - symbol.address)
    return symbol.address, disassemble(code, symbol.address, describe)


def _object(line: Line, place: SourceLine | None) -> dict[str, Any]:
    found = {"address": line.address, "bytes": line.code.hex(), "text": line.text, "note": line.note}
    return found | ({"file": place.file, "line": place.line} if place else {})
