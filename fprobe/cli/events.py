"""`fprobe events`: the events of tracefs, and the fields of their records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fprobe.cli.console import Console
from fprobe.cli.definitions import definition_option
from fprobe.cli.options import Target, output_options, program_options

if TYPE_CHECKING:
    from fprobe.export.formats import EventFormat, FieldFormat

_EPILOG = """\b
Examples:
  fprobe events
  fprobe events -e 'p:reads vfs_read file->f_mode $arg*' -v
  fprobe events --json
"""


@click.command("events", epilog=_EPILOG, short_help="List events and their fields.")
@definition_option(required=False)
@program_options
@output_options
def events_command(definitions: tuple[str, ...], target: Target, console: Console) -> None:
    """List the events of tracefs with their fields. Events of DEFINITION and of FPROBE_EVENTS are defined first.

    -v shows their `format` files.
    """
    from contextlib import ExitStack

    from fprobe.cli import program
    from fprobe.cli.definitions import attached

    program.load(target)
    with ExitStack() as stack:
        if definitions:
            stack.enter_context(attached(definitions, None))
        found = list(_events())
        for event, text in found:
            console.line(f"{event.group}:{event.name}  {', '.join(map(_field, event.fields))}")
            if console.verbosity > 0:
                console.line(console.dim(text))
        console.document([_object(event) for event, _ in found])


def _events() -> Any:
    """Each event, with the text of its format file."""
    from fprobe.export.formats import parse_format
    from fprobe.tracefs import tracefs

    for group in tracefs.listdir("events"):
        for name in tracefs.listdir(f"events/{group}") if tracefs.is_directory(f"events/{group}") else ():
            path = f"events/{group}/{name}"
            if tracefs.is_directory(path):
                text = tracefs.read(f"{path}/format")
                yield parse_format(group, text), text


def _field(field: FieldFormat) -> str:
    number = (
        str(field.count) if field.count > 0 else str(field.size // field.element) if field.count and field.size else ""
    )
    return f"{field.type} {field.name}" + (f"[{number}]" if field.count else "")


def _object(event: EventFormat) -> dict[str, Any]:
    fields = [
        {"name": field.name, "type": field.type, "offset": field.offset, "size": field.size} for field in event.fields
    ]
    return {"group": event.group, "name": event.name, "id": event.id, "fields": fields}
