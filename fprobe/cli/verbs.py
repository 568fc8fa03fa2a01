"""The verbs of the command line. Their modules are imported only when they are used."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from fprobe.cli.failure import Failure

_VERBS = {
    "trace": "Show every call: arguments, results, nesting, durations.",
    "stat": "Count and time the calls of each function.",
    "run": "Run a program with probes on the libraries that it loads, or on its own functions.",
    "top": "Show calls of library functions while a Python program runs.",
    "record": "Record probe events to a trace.dat.",
    "diff": "Compare two reports or recordings.",
    "report": "Show a trace.dat as text, tree, folded stacks or JSON, or convert it to Parquet.",
    "query": "Ask Parquet files by SQL.",
    "hist": "Count the hits of probe events by their fields.",
    "events": "List events and the fields of their records.",
    "tracefs": "Read and write the files of tracefs, or run a shell on them.",
    "mount": "Mount the files of tracefs on a directory.",
    "list": "List the functions that can be probed.",
    "disasm": "Show the bytes at a function's entry, before and while probed.",
    "explain": "Say whether a function can be probed, and if not, why.",
    "doctor": "Test what this machine supports.",
    "completion": "Print a script that makes a shell complete verbs and functions.",
    "help": "Show what a verb does, and its options, or a page of the documentation.",
}


_REMOVED = {
    "graph": "`fprobe trace` shows nested calls; current_tracer and its options are files of `fprobe tracefs sh`",
    "profile": "`fprobe stat` counts and times functions; function_profile_enabled is a file of `fprobe tracefs sh`",
}
"""Verbs of the version before, with the place where their users find the same."""

_MODULES = {
    "completion": "verbs",
    "events": "tracefs",
    "explain": "functions",
    "help": "verbs",
    "list": "functions",
}
"""The modules of verbs that share one; any other verb is in the module of its name."""


class _Verbs(click.Group):
    """A group that imports a command only when it is used: `--help` imports none."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        module = importlib.import_module(f"fprobe.cli.{_MODULES.get(cmd_name, cmd_name)}")
        command = getattr(module, f"{cmd_name}_command")
        assert isinstance(command, click.Command)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Say what to write in place of an option without a verb."""
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            from fprobe.cli.habits import without_verb

            raise _advised(error, without_verb(error.option_name, words)) from None

    def make_context(self, *positional: Any, **options: Any) -> click.Context:
        """Help and version are shown here."""
        with _for_a_reader():
            return super().make_context(*positional, **options)

    def invoke(self, ctx: click.Context) -> Any:
        """Say what to write in place of what a verb does not take."""
        words = list(ctx.args)
        try:
            with _for_a_reader():
                return super().invoke(ctx)
        except click.ClickException as error:
            if isinstance(error, click.UsageError):
                error = _with_advice(error, ctx.invoked_subcommand or "", words)
            _print_object(error, words)
            raise error from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_VERBS.items()))
        from fprobe.cli.pages import topics

        if pages := topics():
            with formatter.section("Topics of `fprobe help TOPIC`"):
                formatter.write_text(", ".join(pages))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if ctx.resilient_parsing:  # a shell completes the words after a wrong one: there is nothing
            return super().resolve_command(ctx, args)
        if args and args[0] in _REMOVED:
            ctx.fail(f"fprobe {args[0]} is gone: {_REMOVED[args[0]]}")
        if args and args[0] not in _VERBS and not args[0].startswith("-"):
            from fprobe.cli import habits
            from fprobe.cli.habits import is_program, of_program
            from sandbox.process.near import did_you_mean

            if is_program(args[0]):
                ctx.fail(f"{args[0]} is a file, and a verb comes first: {of_program(args[0])}")
            if args[0] in habits.VERBS:
                ctx.fail(f"no verb {args[0]!r}: {habits.VERBS[args[0]]}")

            near = did_you_mean(args[0], _VERBS)
            ctx.fail(f"no verb {args[0]!r}{near or '; there are: ' + ', '.join(_VERBS)}")
        return super().resolve_command(ctx, args)


@contextlib.contextmanager
def _for_a_reader() -> Iterator[None]:
    """Exit with 0 where the reader of a pipe has closed it: click would exit with 1."""
    try:
        yield
    except BrokenPipeError:
        sys.exit(0)


def _with_advice(error: click.UsageError, verb: str, words: Sequence[str]) -> click.UsageError:
    """The error with what to write in place of what the verb does not take."""
    from fprobe.cli.habits import advice

    option = error.option_name if isinstance(error, click.NoSuchOption) else ""
    if not option and type(error) is not click.UsageError:  # of a value, which says what is allowed
        return error
    return _advised(error, advice(verb, words, option))


def _print_object(error: click.ClickException, words: Sequence[str]) -> None:
    """With --json, print an object for a wrong command line, as for all else that is refused."""
    if isinstance(error, Failure) and error.is_shown_as_json:
        return
    before = itertools.takewhile(lambda word: word not in ("-m", "-c", "--") and not Path(word).is_file(), words)
    if "--json" in before:  # else it may be of the program that is to be run
        from fprobe.cli.console import Console

        Console(True, False, 0).failure(error)


def _advised(error: click.UsageError, advice: str) -> click.UsageError:
    """The error with a sentence after what click says; the same error if there is none."""
    said = error.format_message()
    end = "" if said.endswith((".", "?")) else "."
    return click.UsageError(f"{said}{end} {advice[0].upper()}{advice[1:]}.", error.ctx) if advice else error


_EPILOG = """\b
Examples:
  fprobe trace 'vfs_*' --exclude vfs_fsync
  fprobe trace 'func*' --program prog.ll --call main 10
  fprobe stat '*' --program prog.c --call main --json
  fprobe list 'vfs_*'
  fprobe disasm vfs_read --stub
  fprobe explain vfs_read
  fprobe doctor

Without --program, the verbs work on the built-in demo: a small file system modelled on a kernel's.
"""


def _version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        click.echo(f"fprobe {version('fprobe')}")
        ctx.exit()


@click.group(cls=_Verbs, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version.")
def verbs() -> None:
    """Function probes for user space: attach to running machine code by name or glob."""


_HELP_EPILOG = """\b
Examples:
  fprobe help
  fprobe help trace
  fprobe help histograms
  fprobe help run.md
"""


@click.command("help", epilog=_HELP_EPILOG, short_help="Show help.")
@click.argument("topic", metavar="[VERB|TOPIC]", required=False)
@click.pass_context
def help_command(ctx: click.Context, topic: str | None) -> None:
    """Show what VERB does, and its options, or the page TOPIC of the documentation; without either, all verbs and topics.

    A name of both means the verb; TOPIC.md means the page.
    """
    from fprobe.cli.pages import topics

    parent, pages = ctx.parent or ctx, topics()
    name = (topic or "").removesuffix(".md")
    if topic is None:
        click.echo(parent.get_help())
    elif name in pages and topic not in _VERBS:
        click.echo_via_pager(pages[name].read_text("utf-8"))
    elif topic in _VERBS:
        _help_of_verb(parent, topic)
    else:
        from sandbox.process.near import did_you_mean

        near = did_you_mean(name, _VERBS) or did_you_mean(name, pages)
        near = near or "; there are: " + ", ".join(dict.fromkeys([*_VERBS, *pages]))
        ctx.fail(f"no verb or topic {topic!r}{near}")


def _help_of_verb(parent: click.Context, verb: str) -> None:
    _name, command, _rest = verbs.resolve_command(parent, [verb])
    assert command is not None
    with click.Context(command, info_name=verb, parent=parent) as context:
        click.echo(command.get_help(context))


_COMPLETION_EPILOG = """\b
Examples:
  eval "$(fprobe completion bash)"
  fprobe completion fish > ~/.config/fish/completions/fprobe.fish
"""


@click.command("completion", epilog=_COMPLETION_EPILOG, short_help="Print the completion script of a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(shell: str) -> None:
    """Print a script that makes SHELL complete verbs, options, and functions of the program or the demo."""
    from click.shell_completion import get_completion_class

    import fprobe.cli.bash  # noqa: F401  # click finds it

    found = get_completion_class(shell)
    if found is None:
        raise Failure(f"no completion for {shell}")
    click.echo(found(verbs, {}, "fprobe", "_FPROBE_COMPLETE").source())
