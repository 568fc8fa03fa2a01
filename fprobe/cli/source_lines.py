"""`fprobe explain -L` and `-V`: the source lines of functions that can be probed, and the variables that live at one."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fprobe.cli.failure import Failure
from ftrace.tracing.probe_args.errors import ProbeError

if TYPE_CHECKING:
    from fprobe.cli.console import Console
    from sandbox.images.variables import Variable
    from sandbox.symbols.debugged import DebuggedFunction

_OPTIMIZED = "is optimized out"


def show_lines(names: Sequence[str], console: Console) -> None:
    """Print the lines of each function with their numbers from its first; `=>` marks those at which code begins.

    Raises Failure for a function that is not there or has no debug information.
    """
    from sandbox.images.source_places import function_named, place_of

    console.document([lines_of(name, partial(function_named, name), place_of, console) for name in names])


def lines_of(
    name: str, find: Callable[[], DebuggedFunction], place_of: Callable[[int], str], console: Console
) -> dict[str, Any]:
    """Print the lines of a function, and return them for JSON. `find`: raises LookupError. `place_of`: the text of an address."""
    from sandbox.images.source_places import damage_said

    try:
        with damage_said(name):
            function = find()
            places, first, file = function.lines(), function.line, function.file
    except LookupError as absent:
        raise Failure(str(absent.args[0])) from None
    console.line(f"{console.bold(name)} {console.dim(f'{file}:{first}')}")
    shown = []
    for number in range(first, max(places, default=first) + 1):
        place = place_of(places[number]) if number in places else None
        text = linecache.getline(file, number).rstrip()
        console.line(f"{'=>' if place else '  '} {number - first:>5}  {text}".rstrip())
        shown.append({"number": number - first, "line": number, "place": place, "text": text})
    return {"function": name, "file": file, "line": first, "lines": shown}


def show_variables(places: Sequence[str], console: Console) -> None:
    """Print the variables at each place, with their types and where their values are. Raises Failure for a wrong place."""
    from kprobes.events.event_place import parse_place
    from sandbox.images.source_places import place_of
    from sandbox.images.variables import variables_at
    from sandbox.symbols.libraries import library_at
    from sandbox.symbols.library_dwarf import absence

    objects = []
    for text in places:
        try:
            where = parse_place(text)
        except ProbeError as refused:
            raise Failure(f"{text}: {refused.hint or refused.strerror}") from None
        code = where.code
        found = variables_at(code) if code is not None else None
        if code is None or found is None:
            raise Failure(where.absence or absence(library_at(code) if code is not None else None, text))
        objects.append(variables_shown(text, place_of(code), found, console))
    console.document(objects)


def variables_shown(text: str, code: str, found: Mapping[str, Variable], console: Console) -> dict[str, Any]:
    """Print the variables at a place, and return them for JSON. `code`: the place as symbol and offset."""
    console.line(f"{console.bold(text)} {console.dim(code)}")
    for each in found.values():
        console.line(f"  {each.type_name:<20} {each.name:<16} {_where(each)}")
    return {"place": text, "code": code, "variables": list(map(_object, found.values()))}


def _where(variable: Variable) -> str:
    if not variable.problem:
        return str(variable.location)
    if variable.problem.startswith(_OPTIMIZED):
        return f"<optimized out>{variable.problem.removeprefix(_OPTIMIZED)}"
    return f"{variable.location or ''} ({variable.problem})".lstrip()


def _object(variable: Variable) -> dict[str, Any]:
    location = str(variable.location) if variable.location is not None else None
    return {"name": variable.name, "type": variable.type_name, "location": location, "reason": variable.problem or None}
