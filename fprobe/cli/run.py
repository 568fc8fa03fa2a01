"""`fprobe run`: run a Python program with probes on the libraries that it loads."""

from __future__ import annotations

import click

from fprobe.cli.failure import Failure

_EPILOG = """\b
Examples:
  fprobe run --stat 'libz:*' app.py input.gz
  fprobe run --hist libz:deflate -m mypackage
  fprobe run --stat 'libsqlite3:sqlite3_*' -o report.txt -c 'import app; app.main()'

The program runs as if python had started it. Reports go to standard error, or to the file of -o.
"""

_BY = {"function": 0, "caller": 1, "thread": 2}


class _Command(click.Command):
    """Everything from the script, -m or -c on is the program's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ours, program = self._split(args)
        ctx.meta["fprobe.program"] = program
        return super().parse_args(ctx, ours)

    def _split(self, args: list[str]) -> tuple[list[str], list[str]]:
        with_value = {name for option in self.params for name in option.opts if not getattr(option, "is_flag", True)}
        position = 0
        while position < len(args):
            word = args[position]
            if word == "--":
                return args[:position], args[position + 1 :]
            if not word.startswith("-") or word == "-" or word.startswith(("-m", "-c")):
                break
            position += 2 if word in with_value else 1
        return args[:position], args[position:]


@click.command(
    "run",
    cls=_Command,
    epilog=_EPILOG,
    short_help="Run a program with probes.",
    options_metavar="[OPTIONS] SCRIPT|-m|-c",
)
@click.option("--stat", "stats", metavar="PATTERN", multiple=True, help="Count and time these functions; repeatable.")
@click.option("--hist", "hists", metavar="PATTERN", multiple=True, help="Show how long their calls take; repeatable.")
@click.option("--by", type=click.Choice(list(_BY)), default="function", show_default=True, help="Tell calls apart.")
@click.option("--output", "-o", metavar="FILE", help="Write the report there.")
@click.option("--json", "as_json", is_flag=True, help="Write the report as JSON.")
@click.pass_context
def run_command(
    ctx: click.Context, stats: tuple[str, ...], hists: tuple[str, ...], by: str, output: str | None, as_json: bool
) -> None:
    """Run SCRIPT, -m MODULE or -c CODE, with the arguments that follow, as python does.

    A PATTERN names functions of a library, loaded now or later: 'libz:inflate*'.
    """
    from fprobe.run import launching, session

    program = ctx.meta["fprobe.program"]
    if not program or (program[0] in ("-m", "-c") and len(program) == 1):
        raise Failure("no program to run: give a script, -m MODULE or -c CODE")
    if not stats and not hists:
        launching.replace(program)
    patterns = tuple(dict.fromkeys((*stats, *hists)))
    counts, journal = session.create(session.Settings(patterns, _BY[by]))
    started = launching.Program(program, launching.environment(session.address_of(counts, journal)))
    from fprobe.run import reporting

    wanted = reporting.Wanted(bool(stats), bool(hists), by)
    status = reporting.after(started, counts, journal, wanted, output, as_json)
    launching.end_like(status)
