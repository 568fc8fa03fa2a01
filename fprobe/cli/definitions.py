"""Options for probe events: -e DEFINITION, --filter, --trigger."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fprobe.cli import candidates

if TYPE_CHECKING:
    from fprobe.events.recorded import Event

_Command = TypeVar("_Command", bound=Callable[..., Any])


def definition_option(required: bool = True) -> Callable[[_Command], _Command]:
    """-e; the command gets `definitions`."""
    return click.option(
        "--event", "-e", "definitions", metavar="DEFINITION", multiple=True, required=required,
        shell_complete=candidates.definitions, help="A line p, r or f; repeatable.",
    )  # fmt: skip


filter_option = click.option(
    "--filter", "filter_text", metavar="FILTER", shell_complete=candidates.fields,
    help="Count only hits that pass this filter.",
)  # fmt: skip


@contextmanager
def attached(definitions: Sequence[str], filter_text: str | None, triggers: Sequence[str] = ()) -> Iterator[Event]:
    """The events, defined and enabled. Raises Failure with a caret under the error."""
    from fprobe.cli.failure import input_errors
    from fprobe.events.recorded import event

    events = event(*definitions, filter=filter_text, trigger=triggers)
    with input_errors():
        events.attach()
    try:
        yield events
    finally:
        events.detach()
