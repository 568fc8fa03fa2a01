"""`fprobe disasm FILE.py:HANDLER`: the machine code of a native handler, with the Python that it comes from."""

from __future__ import annotations

import linecache
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fprobe.cli.console import Console

if TYPE_CHECKING:
    from sandbox.disassembly import Line
    from sandbox.linetable import Place

_HANDLER = re.compile(r".+\.py:\w+")


def is_handler(text: str) -> bool:
    """Whether `text` names a handler in a Python file, and not a function of a program."""
    return _HANDLER.fullmatch(text) is not None


def show(console: Console, text: str, limit: int | None, with_source: bool) -> None:
    """Print the code of the handler `FILE.py:NAME`. Raises Failure if there is none, or if it does not compile."""
    from fprobe.cli import native
    from sandbox.disassembly import listing
    from sandbox.linetable import LineTable

    handler = native.load(text).entry
    image = native.compile_handler(handler)
    base, lines = _code(image, handler.name)
    table = LineTable(image.object_code)
    places = [table.at(line.address - image.text[0]) if with_source else None for line in lines]
    console.line(console.bold(f"{handler.name}, native"))
    before = None
    for shown, place in zip(listing(lines[:limit], base), places, strict=False):
        if place is not None and place[1:] != before:
            console.line(console.dim(_source(place)))
            before = place[1:]
        console.line(shown)
    objects = [_object(line, place) for line, place in zip(lines[:limit], places, strict=False)]
    console.document({"function": handler.name, "loaded": objects})


def _code(image: Any, name: str) -> tuple[int, list[Line]]:
    """The address and the instructions of a function of an image."""
    import ctypes

    from sandbox.disassembly import disassemble
    from sandbox.symbols import symbol_table

    symbol = next(symbol for symbol in image.symbols if symbol.name == name)

    def describe(address: int) -> str | None:
        found = symbol_table.locate(address)
        return str(found) if found else None

    code = ctypes.string_at(symbol.address, symbol.end - symbol.address)
    return symbol.address, disassemble(code, symbol.address, describe)


def _source(place: Place) -> str:
    return f"{Path(place.file).name}:{place.line}: {linecache.getline(place.file, place.line).strip()}"


def _object(line: Line, place: Place | None) -> dict[str, Any]:
    found = {"address": line.address, "bytes": line.code.hex(), "text": line.text, "note": line.note}
    return found | ({"file": place.file, "line": place.line} if place else {})
