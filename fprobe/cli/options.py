"""Options shared by verbs: the program, the call, the output, probe events."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fprobe.cli import candidates
from fprobe.cli.attaching import pid_options
from fprobe.cli.console import Console, wants_color
from fprobe.cli.failure import FAILED, Failure, of_system
from fprobe.cli.formats import FORMATS, format_of
from fprobe.cli.habits import instead_of_definition, of_definition
from fprobe.cli.interrupting import Interrupted, end_process, summarise_nothing

if TYPE_CHECKING:
    from fprobe.recorded_events import Event
    from fprobe.run.launcher.attached import Targets


_Command = TypeVar("_Command", bound=Callable[..., Any])

_NUMBER = re.compile(r"-\.?\d")


@dataclass(frozen=True)
class ProgramTarget:
    """The program that a verb works on: `path`, or the demo if it is None."""

    path: str | None
    cflags: tuple[str, ...]
    opt: int
    flavour: str | None
    notrace: tuple[str, ...]
    running: Targets | None = None
    """Processes to attach to instead."""


class CallingCommand(click.Command):
    """A command with the option `--call FUNC ARG...`, which takes all words up to the next option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Remove --call and its words before click parses the rest; negative numbers are not options."""
        if ctx.resilient_parsing:  # shell completion, for which --call is an option with one value
            return super().parse_args(ctx, args)
        rest, words = split_call(args)
        if words is not None and not words:
            raise click.BadOptionUsage("--call", "--call needs the name of a function, such as --call main 10", ctx)
        ctx.meta[_CALL] = words
        return super().parse_args(ctx, rest)


_CALL = "fprobe.call"

call_option = click.option(
    "--call",
    metavar="FUNC ARG...",
    expose_value=False,
    shell_complete=candidates.functions,
    help="What to call; takes all words up to the next option. Default: demo_main 10, or main of a program.",
)
"""For commands of class CallingCommand; see `call_words`."""


def split_call(args: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """The arguments without `--call FUNC ARG...`, and the words of that; None if it is not given.

    The words end at the next option; after `--`, everything is a word.
    """
    for position, word in enumerate(args):
        if word == "--":
            break
        if word == "--call" or word.startswith("--call="):
            first = [word[len("--call=") :]] if "=" in word else []
            taken, rest = _words(args[position + 1 :])
            return [*args[:position], *rest], [*first, *taken]
    return list(args), None


def _words(args: Sequence[str]) -> tuple[list[str], list[str]]:
    for position, word in enumerate(args):
        if word == "--":
            return [*args[:position], *args[position + 1 :]], []
        if word.startswith("-") and word != "-" and not _NUMBER.match(word):
            return list(args[:position]), list(args[position:])
    return list(args), []


_PROGRAM_OPTIONS = (
    click.option(
        "--program", metavar="FILE", shell_complete=candidates.files,
        help="LLVM IR (.ll, .bc), C or C++ source; default: the built-in demo.",
    ),
    click.option(
        "--cflags", metavar="FLAGS", multiple=True, help="For the C or C++ compiler, as one word; repeatable."
    ),
    click.option("--opt", "-O", type=click.IntRange(0, 3), default=1, show_default=True, help="Optimisation of IR."),
    click.option(
        "--flavour", type=click.Choice(["fentry", "mcount", "patchable", "none"]),
        help="Which stubs to compile with; default: fentry, for C and C++ patchable.",
    ),
    click.option("--notrace", metavar="FUNC", multiple=True, help="Compile this function without a stub; repeatable."),
)  # fmt: skip


def program_options(command: _Command) -> _Command:
    """Adds --program and the options for compiling it, and -p for running processes; the command gets them as `target`."""

    @pid_options
    @functools.wraps(command)
    def wrapped(
        *positional: Any,
        program: str | None,
        cflags: tuple[str, ...],
        opt: int,
        flavour: str | None,
        notrace: tuple[str, ...],
        targets: Targets | None,
        **options: Any,
    ) -> Any:
        if targets is not None and program is not None:
            raise Failure("give a program's source (--program) or a running process (-p), not both")
        target = ProgramTarget(program, _flags(cflags), opt, flavour, notrace, targets)
        return command(*positional, target=target, **options)

    for option in reversed(_PROGRAM_OPTIONS):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]  # it has the signature of what it wraps


def _flags(given: Sequence[str]) -> tuple[str, ...]:
    """The words of every --cflags, split as a shell would."""
    try:
        return tuple(word for flags in given for word in shlex.split(flags))
    except ValueError as error:
        raise click.BadParameter(f"{' '.join(given)}: {error}", param_hint="--cflags") from None


def _use_full_names(_context: click.Context, _option: click.Parameter, full: bool) -> None:
    if full:
        from sandbox.symbols.readable import use_full_names

        use_full_names()


full_names_option = click.option(
    "--full-names", is_flag=True, expose_value=False, callback=_use_full_names,
    help="Names of C++ and Rust with template arguments and parameters.",
)  # fmt: skip


def output_options(command: _Command) -> _Command:
    """Adds --json, --color, -q, -v; the command gets them as `console`. With --json, failures are objects, too."""

    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @click.option("--color", type=click.Choice(["auto", "always", "never"]), default="auto", show_default=True)
    @full_names_option
    @click.option("--quiet", "-q", is_flag=True, help="Only the result: no header, no summary.")
    @click.option("--verbose", "-v", is_flag=True, help="Say more.")
    @functools.wraps(command)
    def wrapped(*positional: Any, as_json: bool, color: str, quiet: bool, verbose: bool, **options: Any) -> Any:
        console = Console(as_json, wants_color(color), verbose - quiet)
        try:
            return command(*positional, console=console, **options)
        except Interrupted:
            _end_interrupted(console)
            raise
        except Failure as failure:
            console.failure(failure)
            raise
        except BrokenPipeError:
            end_process(0)  # the reader has closed the pipe
        except OSError as error:
            error.filename = error.filename or console.output
            click.echo(f"fprobe: {of_system(error)}", err=True)
            end_process(FAILED)

    return wrapped  # type: ignore[return-value]  # it has the signature of what it wraps


def file_options(*formats: str) -> Callable[[_Command], _Command]:
    """Adds --format and --output to a verb with `output_options`, which are above: `console` prints what they say."""

    def decorated(command: _Command) -> _Command:
        @click.option("--format", "-f", "form", metavar="FORMAT", help=f"{', '.join(formats)}; default: text.")
        @click.option(
            "--output", "-o", metavar="FILE", shell_complete=candidates.files,
            help="Write to FILE, in the format of its suffix; default: standard output.",
        )  # fmt: skip
        @functools.wraps(command)
        def wrapped(*positional: Any, form: str | None, output: str | None, console: Console, **options: Any) -> Any:
            of_json = next(each for each in formats if each.endswith("json"))
            console.form = format_of(form, output, formats, of_json if console.json else "text")
            if FORMATS[console.form].is_beside:
                console.beside, console.form = output, of_json if console.json else "text"
                if output is None:
                    raise Failure(f"the format {form} is not for a terminal: give -o FILE")
                return command(*positional, console=console, **options)
            if console.json and not console.form.endswith("json"):
                raise Failure(f"--json is --format {of_json}, and the format is {console.form}: give one of them")
            console.json, console.output = console.form != "text", output
            if output is not None:
                console.color = False
            return command(*positional, console=console, **options)

        return wrapped  # type: ignore[return-value]  # it has the signature of what it wraps

    return decorated


def _end_interrupted(console: Console) -> None:
    if isinstance(click.get_current_context().command, CallingCommand):
        summarise_nothing(console)


def call_words() -> list[str] | None:
    """The words given to --call; None if it was not given."""
    words: list[str] | None = click.get_current_context().meta[_CALL]
    return words


NO_EVENT = "no event is given; give -e DEFINITION, a line p, r or f, such as -e 'p:reads vfs_read count=%dx:u64'"


def _needed(_context: click.Context, _option: click.Parameter, definitions: tuple[str, ...]) -> tuple[str, ...]:
    if not definitions:
        raise Failure(NO_EVENT)
    return definitions


def definition_option(required: bool = True) -> Callable[[_Command], _Command]:
    """-e; the command gets `definitions`."""
    return click.option(
        "--event", "-e", "definitions", metavar="DEFINITION", multiple=True,
        callback=_needed if required else None,
        shell_complete=candidates.definitions, help="A line p, r or f; repeatable.",
    )  # fmt: skip


filter_option = click.option(
    "--filter", "filter_text", metavar="FILTER", shell_complete=candidates.fields,
    help="Count only hits that pass this filter.",
)  # fmt: skip


def _load_library(definition: str) -> None:
    """Load the library that the place of a definition names, if it can be found."""
    from fprobe.cli.matching import load_library, names_image

    if names_image(place := "".join(definition.split()[1:2])):
        load_library(place)


@contextmanager
def attached(definitions: Sequence[str], filter_text: str | None, triggers: Sequence[str] = ()) -> Iterator[Event]:
    """The events, defined and enabled. Raises Failure with a caret under the error."""
    from fprobe.cli.failure import input_errors
    from fprobe.recorded_events import event

    events = event(*definitions, filter=filter_text, trigger=triggers)
    for definition in definitions:
        if line := of_definition(definition):
            raise Failure(f"-e is {definition!r}; give a line p, r or f, such as {line!r}")
        if " " not in definition and (instead := instead_of_definition(definition)):
            raise Failure(f"-e is {definition!r}; {instead}")
        _load_library(definition)
    with input_errors():
        events.attach()
    try:
        yield events
    finally:
        events.detach()
