"""`fprobe help [VERB]`: the same as `fprobe [VERB] --help`."""

from __future__ import annotations

import click

_EPILOG = """\\b
Examples:
  fprobe help
  fprobe help trace
"""


@click.command("help", epilog=_EPILOG, short_help="Show help.")
@click.argument("verb", required=False)
@click.pass_context
def help_command(ctx: click.Context, verb: str | None) -> None:
    """Show what VERB does, and its options; without VERB, all verbs."""
    from fprobe.cli.verbs import verbs

    parent = ctx.parent or ctx
    if verb is None:
        click.echo(parent.get_help())
        return
    _name, command, _rest = verbs.resolve_command(parent, [verb])
    assert command is not None
    with click.Context(command, info_name=verb, parent=parent) as context:
        click.echo(command.get_help(context))
