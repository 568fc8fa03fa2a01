"""Source lines as places: `FILE:LINE`, and `FUNCTION:LINE` with a line that counts from the function's first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sandbox.images.process_text import symbol_at, symbol_named
from sandbox.symbols.debugged import Debugged, DebuggedFunction, compiled_from, function_at, rows_of
from sandbox.symbols.libraries import library_at
from sandbox.symbols.library_dwarf import absence
from sandbox.symbols.source_lines import compiled_in, file_of

_SUFFIXES = frozenset((".c", ".cc", ".cpp", ".cxx", ".c++", ".C", ".h", ".hh", ".hpp", ".hxx", ".inc", ".rs", ".i"))
"""What the names of source files end in."""
_LISTED = 4
"""Places or paths that a message lists."""


def split_line(text: str) -> tuple[str, int] | None:
    """The file or function, and the line, of a place that is written as a source line; None for other places.

    What makes it one is that there are nothing but digits after its last colon: a symbol is not called so.
    """
    owner, colon, line = text.rpartition(":")
    return (owner, int(line)) if owner and colon and line.isascii() and line.isdecimal() else None


def is_file(owner: str) -> bool:
    """Whether what is before the line is the name of a source file, not that of a function."""
    return Path(owner).suffix in _SUFFIXES


def address_of_line(owner: str, line: int) -> int:
    """The lowest address at which code for a line begins. Raises LookupError with a sentence that says what is amiss.

    `owner`: a file, by its name or the end of its path, or a function, from whose first line `line` counts.
    """
    with damage_said(owner):
        return _in_file(owner, line) if is_file(owner) else _in_function(owner, line)


@contextmanager
def damage_said(owner: str) -> Iterator[None]:
    """Turn what reading damaged debug information about a file or function raises, which is anything, into LookupError."""
    try:
        yield
    except Exception as failed:
        if type(failed) is LookupError:
            raise
        raise LookupError(f"the debug information about {owner} is damaged: {failed!r}") from None


def _in_function(owner: str, line: int) -> int:
    function = function_named(owner)
    lines = function.lines()
    wanted = function.line + line
    if wanted not in lines:
        near = _near([each - function.line for each in lines], line)
        raise LookupError(f"no code of {owner} begins at its line {line}, which is {function.file}:{wanted}; {near}")
    return lines[wanted]


def function_named(name: str) -> DebuggedFunction:
    """The function of that name, `SYMBOL`, `MODULE:SYMBOL` or `LIBRARY:SYMBOL`.

    Raises LookupError if there is none, or no debug information about it.
    """
    address = symbol_named(name).address
    function = function_at(address)
    if function is None or not function.file:
        raise LookupError(f"{absence(library_at(address), name)}; or give {name}+OFFSET")
    return function


def _in_file(name: str, line: int) -> int:
    found: dict[str, list[tuple[int, int]]] = {}
    for code in compiled_from(Path(name).name):
        for path, at, address in _rows_in(code, name):
            found.setdefault(path, []).append((at, address))
    if not found:
        raise LookupError(
            f"no module or library that is loaded, with its debug information in it, was compiled from {name};"
            " where that is in a debug file, give LIBRARY:FUNCTION:LINE"
        )
    if len(found) > 1:
        raise LookupError(
            f"{name} is the name of several files: give more of the path of one of {_some(sorted(found))}"
        )
    ((path, lines),) = found.items()
    addresses = [address for at, address in lines if at == line]
    if not addresses:
        raise LookupError(f"no code begins at line {line} of {path}; {_near([at for at, _ in lines], line)}")
    return _of_one_function(addresses, f"{name}:{line}")


def _rows_in(code: Debugged, name: str) -> Iterator[tuple[str, int, int]]:
    """Path, line and address of the code that was compiled from a file."""
    for unit in code.information.dwarf.iter_CUs():
        program = code.information.dwarf.line_program_for_CU(unit)
        if program is None:
            continue
        is_old = program.header["version"] < 5
        files = range(is_old, len(program.header["file_entry"]) + is_old)
        if any(_is_called(file_of(program, compiled_in(unit), number), name) for number in files):
            for row in rows_of(code.information, unit):
                if row.is_statement and row.line and _is_called(row.file, name):
                    yield row.file, row.line, code.base + row.offset


def _is_called(path: str, name: str) -> bool:
    """Whether a path ends in `name`, which begins at the name of a directory or file."""
    return f"/{path}".endswith(f"/{name.lstrip('/')}")


def _of_one_function(addresses: Iterable[int], written: str) -> int:
    """The first of the addresses, which are those of one line. Raises LookupError if they are in several functions."""
    functions: dict[int, tuple[DebuggedFunction, list[int]]] = {}
    for address in addresses:
        function = function_at(address)
        if function is not None:
            key = function.code.base + function.die.offset
            functions.setdefault(key, (function, []))[1].append(address)
    firsts = [min(inside, key=function.order) for function, inside in functions.values()]
    if not firsts:
        raise LookupError(f"the code of {written} is in no function that debug information describes")
    if len(firsts) > 1:
        places = _some([place_of(address) for address in sorted(firsts)])
        raise LookupError(f"{written} was compiled into {len(firsts)} functions: give one of {places}")
    return firsts[0]


def place_of(address: int) -> str:
    """An address in code as `MODULE:SYMBOL+0xOFFSET`."""
    symbol = symbol_at(address)
    if symbol is None:
        return f"{address:#x}"
    offset = address - symbol.address
    return f"{symbol.module}:{symbol.name}{f'+{offset:#x}' if offset else ''}"


def _some(names: list[str]) -> str:
    return ", ".join(names[:_LISTED]) + (", ..." if len(names) > _LISTED else "")


def _near(lines: Iterable[int], line: int) -> str:
    """The lines before and after one that has no code."""
    before, after = [each for each in lines if each < line], [each for each in lines if each > line]
    near = [str(each) for each in (max(before, default=None), min(after, default=None)) if each is not None]
    if not near:
        return "no line of it has code"
    return (
        f"the nearest line that can be probed is {near[0]}"
        if len(near) == 1
        else (f"the nearest lines that can be probed are {' and '.join(near)}")
    )
