"""`fprobe profile`: the function profiler's table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from fprobe.cli import candidates
from fprobe.cli.console import Console
from fprobe.cli.options import CallingCommand, ProgramTarget, call_option, call_words, output_options, program_options

if TYPE_CHECKING:
    from fprobe.cli.program import ProgramCall
    from fprobe.cli.running import Outcome

_EPILOG = """\b
Examples:
  fprobe profile
  fprobe profile 'vfs_*' --program prog.c --call main
"""


class Row(NamedTuple):
    """A function, over all threads. `time_us`: of the calls that returned, including their callees."""

    name: str
    hits: int
    returned: int
    time_us: float

    @property
    def average_us(self) -> float:
        """The average time of a call that returned; 0 if none did."""
        return self.time_us / self.returned if self.returned else 0.0


@click.command("profile", cls=CallingCommand, epilog=_EPILOG, short_help="Profile functions.")
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1, shell_complete=candidates.functions)
@call_option
@program_options
@output_options
def profile_command(patterns: tuple[str, ...], target: ProgramTarget, console: Console) -> None:
    """Run the program under the function profiler, on the functions that match PATTERN (default: all)."""
    from fprobe.cli import filters, matching, program
    from fprobe.cli.conclusion import conclude
    from fprobe.cli.failure import input_errors
    from fprobe.cli.interrupting import ctrl_c
    from fprobe.cli.running import run
    from fprobe.tracefs import tracefs

    module = program.load(target)
    call = program.prepare_call(module, call_words(), target)
    matching.check_each_matches(module, patterns)
    with input_errors():
        filters.set_filter(patterns or ("*",))
        tracefs.write("function_profile_enabled", "1")
    ctrl_c.hold_for_run()
    with console.alone():
        console.note(f"# profiling, calling {call}")
        outcome = run(call)
        tracefs.write("function_profile_enabled", "0")
        _show(console, call, outcome, rows())
        conclude(outcome)


def rows() -> list[Row]:
    """The rows of all threads combined, the most time first."""
    from ftrace.tracing.output.profile import function_name
    from ftrace.tracing.output.trace import slots_in_use
    from ftrace.tracing.tracers.profile import function_profiler

    found: dict[str, Row] = {}
    for slot in range(slots_in_use()):
        for each in function_profiler.profiles(slot):
            name = function_name(each.ip)
            before = found.get(name, Row(name, 0, 0, 0.0))
            counts = before.hits + each.hits, before.returned + each.returned
            found[name] = Row(name, *counts, before.time_us + each.time / 1000)
    return sorted(found.values(), key=lambda row: (-row.time_us, row.name))


def _show(console: Console, call: ProgramCall, outcome: Outcome, found: list[Row]) -> None:
    from fprobe.cli.conclusion import ending, outcome_object, print_outcome

    console.note(f"  {'Function':<30}  {'Hit':>10}  {'Time':>15}  {'Avg':>12}")
    for row in found:
        console.line(f"  {row.name:<30}  {row.hits:10,}  {row.time_us:12.3f} us  {row.average_us:9.3f} us")
    print_outcome(console, call, outcome)
    console.document(outcome_object(call, outcome) | {"functions": list(map(_object, found))} | ending(outcome))


def _object(row: Row) -> dict[str, Any]:
    total = round(row.time_us * 1000)
    return {
        "name": row.name,
        "hits": row.hits,
        "returned": row.returned,
        "total_ns": total,
        "average_ns": round(row.average_us * 1000),
    }
