"""Shared by the verbs that run a Python program: its command line, and starting it with probes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fprobe.cli.failure import Failure

if TYPE_CHECKING:
    from fprobe.run.launching import Program
    from fprobe.run.session import Settings

BY = {"function": 0, "caller": 1, "thread": 2}
"""The choices of --by, which group calls; numbers as in `ftrace.hit.call_table`."""
by_option = click.option(
    "--by", type=click.Choice(list(BY)), default="function", show_default=True, help="Group calls."
)
_WORDS = "fprobe.program"


class PythonCommand(click.Command):
    """A command whose arguments from the script, -m or -c on belong to the program: see `program_words`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Remove the program's words before click parses the rest."""
        position = self._program_at(args)
        words = args[position:]
        ctx.meta[_WORDS] = words[1:] if words[:1] == ["--"] else words
        return super().parse_args(ctx, args[:position])

    def _program_at(self, args: list[str]) -> int:
        with_value = {name for option in self.params for name in option.opts if not getattr(option, "is_flag", True)}
        position = 0
        while position < len(args):
            word = args[position]
            if not word.startswith("-") or word in ("-", "--") or word.startswith(("-m", "-c")):
                break
            position += 2 if word in with_value else 1
        return min(position, len(args))


def program_words() -> list[str]:
    """The words that would follow `python`. Raises Failure if there is no program."""
    words: list[str] = click.get_current_context().meta[_WORDS]
    if not words:
        raise Failure("no program is given; give a script, -m MODULE or -c CODE")
    if words[0] in ("-m", "-c") and len(words) == 1:
        raise Failure(f"{words[0]} needs {'the name of a module' if words[0] == '-m' else 'code'} after it")
    return words


def checked(patterns: tuple[str, ...]) -> tuple[str, ...]:
    """The patterns without repetitions. Raises Failure for one that is empty before or after its colon."""
    for pattern in patterns:
        owner, colon, functions = pattern.partition(":")
        if not owner or (colon and not functions):
            raise Failure(f"the pattern is {pattern!r}; give a library and its functions, such as 'libz:inflate*'")
    return tuple(dict.fromkeys(patterns))


def start(settings: Settings, output: int | None = None) -> tuple[Program, int, int]:
    """Start the program. Returns it, its file of counts, and its journal. `output`: a descriptor for its standard output."""
    from fprobe.run import launching, session

    try:
        counts, journal = session.create(settings)
    except OSError as error:
        raise Failure(f"the memory that the program shares could not be created: {error.strerror}", 1) from None
    environ = launching.environment(session.address_of(counts, journal))
    return launching.Program(program_words(), environ, output), counts, journal
