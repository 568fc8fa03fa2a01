"""`fprobe explain -L` and `-V` with -p: source lines and variables of functions that another process has mapped."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fprobe.cli.failure import Failure
from fprobe.cli.remote_functions import RemoteFunction, functions, opened
from fprobe.cli.source_lines import lines_of, variables_shown
from sandbox.images.source_places import damage_said
from sandbox.symbols.debugged import Debugged, DebuggedFunction
from sandbox.symbols.library_dwarf import absence, information_of

if TYPE_CHECKING:
    from fprobe.cli.console import Console
    from sandbox.images.variables import Variable
    from sandbox.remote.process import RemoteProcess

_PLACE = re.compile(r"(?P<function>.+?:.+?)(?:\+(?P<offset>0[xX][\da-fA-F]+|\d+)|:(?P<line>\d+))?")


def lines_running(pids: Sequence[int], names: Sequence[str], console: Console) -> None:
    """Print the lines of each function with their numbers, as `show_lines` does."""
    _each_process(pids, names, _lines, console)


def variables_running(pids: Sequence[int], places: Sequence[str], console: Console) -> None:
    """Print the variables at each place, `LIBRARY:FUNCTION`, with `:LINE` or `+OFFSET`, as `show_variables` does."""
    _each_process(pids, places, _variables, console)


def _each_process(
    pids: Sequence[int],
    texts: Sequence[str],
    show: Callable[[RemoteProcess, str, Console], dict[str, Any]],
    console: Console,
) -> None:
    processes = []
    for pid in pids:
        if len(pids) > 1:
            console.note(f"# process {pid}")
        with opened(pid) as process:
            processes.append({"pid": pid, "places": [show(process, text, console) for text in texts]})
    console.document({"processes": processes})


def _lines(process: RemoteProcess, name: str, console: Console) -> dict[str, Any]:
    found = _found(process, name)
    return lines_of(name, partial(_described, found, name), partial(_place, found), console)


def _found(process: RemoteProcess, name: str) -> RemoteFunction:
    """The function of that name, the first if there are several. Raises Failure."""
    return next(functions(process, [name]))


def _described(found: RemoteFunction, name: str) -> DebuggedFunction:
    """Raises LookupError if there is no debug information about the function."""
    information = information_of(found.library)
    code = Debugged(found.library.base, information) if information is not None else None
    function = next(code.functions_at(found.symbol.address), None) if code is not None else None
    if function is None:
        raise LookupError(absence(found.library, name))
    return function


def _place(found: RemoteFunction, address: int) -> str:
    located = found.library.locate(address)
    symbol = located.symbol if located else found.symbol
    return f"{symbol.module}:{symbol.name}+{address - symbol.address:#x}"


def _variables(process: RemoteProcess, text: str, console: Console) -> dict[str, Any]:
    from sandbox.images.variables import variables_of

    place = _PLACE.fullmatch(text)
    if place is None:
        raise Failure(f"the place is {text!r}; with -p give LIBRARY:FUNCTION, with :LINE or +OFFSET after it")
    found = _found(process, place["function"])
    try:
        with damage_said(text):
            function = _described(found, place["function"])
            address = _address(found, function, place)
            shown: dict[str, Variable] = variables_of(function, address, partial(_frame, found, address))
    except LookupError as absent:
        raise Failure(str(absent.args[0])) from None
    return variables_shown(text, _place(found, address), shown, console)


def _address(found: RemoteFunction, function: DebuggedFunction, place: re.Match[str]) -> int:
    """Raises LookupError if no code begins at the line."""
    if place["line"] is None:
        return found.symbol.address + int(place["offset"] or "0", 0)
    lines, wanted = function.lines(), function.line + int(place["line"])
    if wanted not in lines:
        there = ", ".join(str(line - function.line) for line in lines)
        raise LookupError(f"no code of {place['function']} begins at its line {place['line']}; it does at {there}")
    return lines[wanted]


def _frame(found: RemoteFunction, address: int) -> tuple[int, int] | None:
    """The canonical frame address at an instruction, by the unwind tables of its file: a register's number and an offset."""
    from elftools.dwarf.callframe import FDE
    from elftools.elf.elffile import ELFFile

    wanted, best = address - found.library.base, None
    with ELFFile.load_from_path(str(found.library.path)) as file:
        for entry in file.get_dwarf_info().EH_CFI_entries():
            if isinstance(entry, FDE) and 0 <= wanted - entry["initial_location"] < entry["address_range"]:
                rows = [row for row in entry.get_decoded().table if row["pc"] <= wanted]
                best = rows[-1]["cfa"] if rows else None
    return (best.reg, best.offset) if best is not None and best.reg is not None else None
