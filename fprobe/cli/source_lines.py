"""`fprobe explain -L` and `-V`: the source lines of functions that can be probed, and the variables that live at one."""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fprobe.cli.failure import Failure
from ftrace.tracing.probe_args.errors import ProbeError

if TYPE_CHECKING:
    from fprobe.cli.console import Console
    from sandbox.images.variables import Variable

_OPTIMIZED = "is optimized out"


def show_lines(names: Sequence[str], console: Console) -> None:
    """Print the lines of each function with their numbers from its first; `=>` marks those at which code begins.

    Raises Failure for a function that is not there or has no debug information.
    """
    from sandbox.images.source_places import damage_said, function_named

    objects = []
    for name in names:
        try:
            with damage_said(name):
                function = function_named(name)
                places, first, file = function.lines(), function.line, function.file
        except LookupError as absent:
            raise Failure(str(absent.args[0])) from None
        console.line(f"{console.bold(name)} {console.dim(f'{file}:{first}')}")
        shown = [_line(number, first, file, places) for number in range(first, max(places, default=first) + 1)]
        for each in shown:
            mark = "=>" if each["place"] else "  "
            console.line(f"{mark} {each['number']:>5}  {each['text']}".rstrip())
        objects.append({"function": name, "file": file, "line": first, "lines": shown})
    console.document(objects)


def _line(number: int, first: int, file: str, places: dict[int, int]) -> dict[str, Any]:
    from sandbox.images.source_places import place_of

    text = linecache.getline(file, number).rstrip()
    place = place_of(places[number]) if number in places else None
    return {"number": number - first, "line": number, "place": place, "text": text}


def show_variables(places: Sequence[str], console: Console) -> None:
    """Print the variables at each place, with their types and where their values are. Raises Failure for a wrong place."""
    from kprobes.events.event_place import parse_place
    from sandbox.images.source_places import place_of
    from sandbox.images.variables import variables_at

    objects = []
    for text in places:
        try:
            where = parse_place(text)
        except ProbeError as refused:
            raise Failure(f"{text}: {refused.hint or refused.strerror}") from None
        code = where.code
        found = variables_at(code) if code is not None else None
        if code is None or found is None:
            raise Failure(where.absence or f"there is no debug information about {text}: compile it with -g")
        console.line(f"{console.bold(text)} {console.dim(place_of(code))}")
        for each in found.values():
            console.line(f"  {each.type_name:<20} {each.name:<16} {_where(each)}")
        objects.append({"place": text, "code": place_of(code), "variables": list(map(_object, found.values()))})
    console.document(objects)


def _where(variable: Variable) -> str:
    if not variable.problem:
        return str(variable.location)
    if variable.problem.startswith(_OPTIMIZED):
        return f"<optimized out>{variable.problem.removeprefix(_OPTIMIZED)}"
    return f"{variable.location or ''} ({variable.problem})".lstrip()


def _object(variable: Variable) -> dict[str, Any]:
    location = str(variable.location) if variable.location is not None else None
    return {"name": variable.name, "type": variable.type_name, "location": location, "reason": variable.problem or None}
