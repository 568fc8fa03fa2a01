"""`fprobe completion`: the script that completes verbs, options and names of functions in a shell."""

from __future__ import annotations

import click

from fprobe.cli.failure import Failure

_EPILOG = """\b
Examples:
  eval "$(fprobe completion bash)"
  fprobe completion fish > ~/.config/fish/completions/fprobe.fish
"""


@click.command("completion", epilog=_EPILOG, short_help="Print the completion script of a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(shell: str) -> None:
    """Print a script that makes SHELL complete verbs, options, and functions of the program or the demo."""
    from click.shell_completion import get_completion_class

    from fprobe.cli.verbs import verbs

    found = get_completion_class(shell)
    if found is None:
        raise Failure(f"no completion for {shell}")
    click.echo(found(verbs, {}, "fprobe", "_FPROBE_COMPLETE").source())
