"""`fprobe run`: a program with probes on the libraries that it loads. `fprobe top` starts one in the same way."""

from __future__ import annotations

import errno
import functools
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fprobe.cli.attaching import attach_and_report, pid_options
from fprobe.cli.console import Console
from fprobe.cli.failure import Failure
from fprobe.cli.formats import check_package, format_of, prepare_rows, report_file
from fprobe.cli.habits import instead_of_definition, of_definition
from fprobe.cli.options import full_names_option
from fprobe.cli.ordering import check_tables, table_options
from fprobe.cli.selecting import (
    by_number,
    by_option,
    check_where,
    question_of,
    stack_values_of,
    values_of,
    where_option,
)
from sandbox.symbols.names import name_of_python, split_owner

if TYPE_CHECKING:
    from fprobe.report.order import Order
    from fprobe.run.launcher.attached import Targets
    from fprobe.run.launcher.launching import Program
    from fprobe.run.session import Settings
    from fprobe.run.values import Values


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
    """The words that would follow `python`. Raises Failure if there is no program, or none that python can run."""
    words: list[str] = click.get_current_context().meta[_WORDS]
    if not words:
        raise Failure("no program is given; give a script, -m MODULE, -c CODE or an executable")
    if words[0] in ("-m", "-c") and len(words) == 1:
        raise Failure(f"{words[0]} needs {'the name of a module' if words[0] == '-m' else 'code'} after it")
    from fprobe.run.launcher.commands import of_other_python, with_command
    from fprobe.run.launcher.not_python import is_machine_code, why_not_python

    given, words = words[0], with_command(words)
    if is_machine_code(words):
        from fprobe.run.launcher.elf_program import why_not

        reason = why_not(words[0])
    else:
        reason = why_not_python(words) or of_other_python(given, words[0])
    if reason:
        raise Failure(reason)
    return words


def _replace_by_program() -> None:
    """Run the program without probes, instead of this process."""
    from fprobe.run.launcher.launching import replace
    from fprobe.run.launcher.not_python import is_machine_code

    words = program_words()
    try:
        if is_machine_code(words):
            replace(words[0], words)
        replace(sys.executable, [sys.executable, *words])
    except OSError as error:
        raise Failure(f"the program could not be started: {error.strerror}", 1) from None


def checked(patterns: tuple[str, ...]) -> tuple[str, ...]:
    """The patterns without repetitions. Raises Failure for one that is empty before or after its colon, or is to leave out."""
    for pattern in patterns:
        owner, colon, functions = split_owner(pattern)
        if not pattern or (colon and not (owner and functions)):
            raise Failure(f"the pattern is {pattern!r}; give a library and its functions, such as 'libz:inflate*'")
        if pattern.startswith("!"):
            raise Failure(
                f"the pattern is {pattern!r}; it cannot leave functions out here: give patterns of those to probe"
            )
        if of_python := name_of_python(pattern):
            raise Failure(of_python)
    return tuple(dict.fromkeys(patterns))


def start(settings: Settings, output: int | None = None) -> tuple[Program, int, int]:
    """Start the program. Returns it, its file of counts, and its journal. `output`: a descriptor for its standard output.

    If that takes long, the terminal shows what is done; with `output` later, by the table.
    """
    from fprobe.cli.console import progress_line
    from fprobe.run import session
    from fprobe.run.launcher import launching
    from fprobe.run.launcher.not_python import is_machine_code
    from fprobe.run.launcher.start_up import ProgramStart

    words = program_words()
    if is_machine_code(words):
        return _start_machine_code(words, settings, output)
    try:
        counts, journal = session.create(settings)
    except OSError as error:
        raise Failure(f"the memory that the program shares could not be created: {error.strerror}", 1) from None
    environ = launching.environment(session.address_of(counts, journal))
    try:
        program = launching.Program(words, environ, output)
    except OSError as error:
        raise Failure(f"the program could not be started: {error.strerror}", 1) from None
    import fprobe.run.launcher.report  # noqa: F401  # while the program starts

    if output is None and settings.arms:
        program_start = ProgramStart(program, counts, journal)
        with progress_line(program_start.shown_text):
            program_start.wait()
        program_start.end()
    return program, counts, journal


def _start_machine_code(words: list[str], settings: Settings, output: int | None) -> tuple[Program, int, int]:
    from fprobe.cli.console import progress_line
    from fprobe.run.launcher import elf_program
    from sandbox.remote.refusals import Refused, read_status

    try:
        return elf_program.start(words, settings, output, progress_line)
    except Refused as error:
        raise Failure(str(error.strerror)) from None
    except OSError as error:
        tracer = read_status(os.getpid()).get("TracerPid", "0")
        if error.errno == errno.EPERM and tracer != "0":
            raise Failure(
                f"the program could not be started: process {tracer} (a debugger or strace) traces what fprobe starts, and "
                "only one process can trace a program; use strace without -f, or attach to a program that runs, with -p",
                1,
            ) from None
        raise Failure(f"the program could not be started: {error.strerror}", 1) from None


_RUN_EPILOG = """\b
Examples:
  fprobe run --stat 'libz:*' app.py input.gz
  fprobe run --hist libz:deflate -m mypackage
  fprobe run --stat libc:read --by 'arg(fd)' --where 'retval:s64 > 0' app.py
  fprobe run --hist libc:malloc --of arg1 --sum arg1 \\
      --where 'arg1 > 4096' --by caller app.py
  fprobe run --stat 'libsqlite3:sqlite3_*' --by caller -o report.txt \\
      -c 'import app; app.main()'
  fprobe run --trace 'libz:*flate*' --format perfetto -o app.pftrace app.py
  fprobe run --stacks libz:deflate --format flame -o app.html app.py
  fprobe run --stacks libc:malloc --sum arg1 -o allocations.html app.py
  fprobe run --trace 'libz:*flate*' -o calls.parquet app.py
  fprobe run --stat 'libz:*' -o functions.csv app.py
  fprobe run --mount t app.py
  fprobe run --stat 'libssl:SSL_*' gunicorn app:app
  fprobe run -e 'r:packed libz:deflate result=$retval:s32' app.py
  fprobe run --stat 'handle_*' --stat libc:write ./server --port 8080
  fprobe run --stacks libz:deflate -p 4711 --duration 10

The program runs as if python had started it. The report goes to standard error, or to the file of -o.
"""
_FORMATS = ("text", "json", "ndjson", "csv", "folded", "flame", "speedscope", "perfetto", "parquet")
_NEEDS = {"perfetto": "--trace", **dict.fromkeys(("folded", "flame", "speedscope"), "--stacks")}


_REPEATED: dict[str, Any] = {"metavar": "PATTERN", "multiple": True}


def _opened(output: str | None, form: str) -> int:
    """A descriptor for the report. Raises Failure before anything is run."""
    if output == "-":
        raise Failure("the report cannot go to standard output, which is the program's: give -o FILE")
    program_words()  # before the file is emptied
    if output is None:
        return 2
    return report_file(output, form)


def _check_format(format_: str, given: dict[str, tuple[str, ...]]) -> None:
    """Check that the format can be written, and shows everything that the given options record. Raises Failure."""
    check_package(format_)
    needed = _NEEDS.get(format_)
    if format_ == "parquet":
        _check_rows(given)
    if not needed:
        return
    if not given[needed]:
        raise Failure(f"--format {format_} shows what {needed} records: give {needed} PATTERN")
    unseen = " and ".join(option for option, value in given.items() if value and option != needed)
    if unseen:
        raise Failure(
            f"--format {format_} shows only what {needed} records, not {unseen}: give --format json, or two runs"
        )


def _check_rows(given: dict[str, tuple[str, ...]]) -> None:
    """Raise Failure unless the options record rows of Parquet, and nothing else."""
    rows = ("--trace", "--stacks", "-e")
    unseen = " and ".join(option for option, value in given.items() if value and option not in rows)
    if unseen or not any(given[option] for option in rows):
        what = f", not {unseen}" if unseen else ""
        raise Failure(f"the format parquet has calls, stacks and records of events{what}: give --trace, --stacks or -e")


def _one_format(format_: str | None, as_json: bool, output: str | None) -> str:
    """The format. Raises Failure if --format, --json and -o contradict each other."""
    if as_json and format_ not in (None, "json"):
        raise Failure(f"--json is --format json, and --format is {format_}: give one of them")
    form = format_of("json" if as_json else format_, output, _FORMATS, "text")
    if form == "parquet" and output is None:
        raise Failure("the format parquet is not for a terminal: give -o FILE")
    return form


def _check_no_report(output: str | None, as_json: bool) -> None:
    """Raise Failure if a report is wanted, but nothing that it could show."""
    is_given = {"-o": output is not None, "--json": as_json, "--format": _is_given("format_")}
    options = " and ".join(option for option, given in is_given.items() if given)
    if options:
        raise Failure(f"{options}: there is nothing to report; give --stat PATTERN, --hist, --trace, --stacks or -e")


def _is_given(parameter: str) -> bool:
    source = click.get_current_context().get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"


def _stack_definitions(values: Values | None, patterns: tuple[str, ...]) -> tuple[str, ...]:
    """The events of --stacks by values. Raises Failure."""
    try:
        return tuple(values.stack_definition(number, each) for number, each in enumerate(patterns)) if values else ()
    except ValueError as error:
        raise Failure(str(error)) from None


def _check_by(by: str, tables: tuple[str, ...]) -> None:
    """Raise Failure if there are no tables that --by could group."""
    if by != "function" and not tables:
        raise Failure(f"--by {by} groups the calls of --stat and --hist: give one of them")


def checked_native(native: str | None, traces: tuple[str, ...]) -> str:
    """The text with an absolute path, since the program may change its directory; "" for None.

    Raises Failure for everything that can be seen without executing the file.
    """
    if native is None:
        return ""
    if not traces:
        raise Failure("--native handles the calls of --trace, which is not given; give --trace PATTERN")
    from fprobe.handlers.native_file import NativeFileError, split

    try:
        path, entry, exit_ = split(native)
    except NativeFileError as error:
        raise Failure(str(error)) from None
    if not Path(path).is_file():
        raise Failure(f"{path}: no such file")
    return f"{Path(path).absolute()}:{entry}:{exit_}"


def checked_mount(directory: str | None) -> str:
    """The absolute path of a directory that a tree can be mounted on; "" for None. Raises Failure."""
    if directory is None:
        return ""
    from fprobe.cli.failure import input_errors
    from fprobe.mount.mounting import check_device, check_directory

    with input_errors():
        check_device()
        return str(check_directory(directory))


_EVENT = "p:asked libz:deflate strm=%di"


def check_events(events: tuple[str, ...]) -> None:
    """Check the form of the definitions; the program checks the rest, since it has the functions. Raises Failure."""
    for text in events:
        if not re.match(r"[prf]\d*(:\S+)?\s", text):
            if instead := instead_of_definition(text):
                raise Failure(f"-e is {text!r}; {instead}")
            raise Failure(f"-e is {text!r}; give a line p, r or f, such as {of_definition(text) or _EVENT!r}")
        if of_python := name_of_python("".join(text.split()[1:2]).partition("%")[0]):
            raise Failure(of_python)


_Command = TypeVar("_Command", bound=Callable[..., Any])


def _refusals_as_json(command: _Command) -> _Command:
    """With --json, print an object for a failure, as other verbs do: the program has not begun to use standard output."""

    @functools.wraps(command)
    def wrapped(**options: Any) -> Any:
        try:
            return command(**options)
        except Failure as failure:
            Console(options["as_json"] or options["format_"] == "json", False, 0).failure(failure)
            raise

    return wrapped  # type: ignore[return-value]  # it has the signature of what it wraps


@click.command(
    "run", cls=PythonCommand, epilog=_RUN_EPILOG, short_help="Run a program with probes.",
    options_metavar="[OPTIONS] SCRIPT|-m MODULE|-c CODE|PROGRAM [ARGUMENTS]",
)  # fmt: skip
@click.option("--stat", "stats", **_REPEATED, help="Count and time these functions; repeatable.")
@click.option("--hist", "hists", **_REPEATED, help="Show a histogram of these functions' durations; repeatable.")
@click.option("--trace", "traces", **_REPEATED, help="Show every call of these functions; repeatable.")
@click.option("--stacks", **_REPEATED, help="Show the callers of these functions, native and Python; repeatable.")
@click.option(
    "--native", metavar="FILE:ENTRY[:EXIT]", help="Run these native handlers for --trace, and show their maps."
)
@click.option(
    "--event", "-e", "events", metavar="DEFINITION", multiple=True,
    help="Record this probe event, a line p, r or f; repeatable.",
)  # fmt: skip
@by_option
@click.option(
    "--of", "of_argument", metavar="ARG", default="", help="--hist is of this argument's values: a name, or arg1."
)
@where_option
@click.option(
    "--sum",
    "sum_argument",
    metavar="ARG",
    default="",
    help="--hist and --stacks add up this argument, or the product ARG*ARG.",
)
@table_options
@full_names_option
@pid_options
@click.option("--output", "-o", metavar="FILE", help="Write the report to FILE.")
@click.option(
    "--format", "-f", "format_", metavar="FORMAT", help=f"{', '.join(_FORMATS)}; default: that of -o's suffix, or text."
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option(
    "--perf-map", "perf_map", is_flag=True, help="Write /tmp/perf-PID.map of each process, for perf; it stays."
)
@click.option("--no-strings", "no_strings", is_flag=True, help="With --trace, record nothing that pointers lead to.")
@click.option("--mount", "mounted_on", metavar="DIR", help="Mount the program's tracefs on DIR while it runs.")
@_refusals_as_json
def run_command(
    stats: tuple[str, ...], hists: tuple[str, ...], traces: tuple[str, ...], stacks: tuple[str, ...],
    native: str | None, events: tuple[str, ...], by: str, of_argument: str, where: str, sum_argument: str, order: Order,
    cpu: bool, output: str | None, format_: str | None,
    as_json: bool, perf_map: bool, no_strings: bool, mounted_on: str | None,
    targets: Targets | None,
) -> None:  # fmt: skip
    """Run SCRIPT, -m MODULE or -c CODE, with the arguments that follow, as python does; or PROGRAM, an executable file.

    A PATTERN names functions of a library, loaded now or later: 'libz:inflate*'; or of PROGRAM itself: 'handle_*'. Exit code:
    the program's.
    """
    from fprobe.report.counts import CPU, SELF, WALL
    from fprobe.run.launcher.report_selection import ReportSelection
    from fprobe.run.session import Settings

    recorded = () if native else traces
    format_ = _one_format(format_, as_json, output)
    given = {"--stat": stats, "--hist": hists, "--trace": recorded, "--stacks": stacks, "-e": events}
    _check_format(format_, given | {"--native": traces if native else ()})
    values = values_of(of_argument, by, where, sum_argument, hists, stacks)
    of_stacks = stack_values_of(where, sum_argument, stacks)
    if of_stacks and format_ == "parquet":
        raise Failure("the format parquet has the times of stacks, not values of arguments: give --format json")
    question = question_of(by, where)
    _check_by(by, (*stats, *hists))
    check_where(where, (*stats, *hists, *stacks), recorded if question and stats else ())
    check_tables(order, cpu, (*stats, *hists, *(stacks if of_stacks else ())))
    if no_strings and not recorded:
        raise Failure("--no-strings is for the calls that --trace records, which is not given: give --trace PATTERN")
    handlers = checked_native(native, traces)
    check_events(events)
    valued = checked(hists) if values else ()
    timed = () if values else hists
    selected = checked(stats) if question else ()
    plain = timed if question else (*stats, *timed)
    counted, handled = checked((*plain, *recorded)), checked(traces if native else ())
    stacked, valued_stacks = ((), checked(stacks)) if of_stacks else (checked(stacks), ())
    mount = checked_mount(mounted_on)
    measures = CPU if cpu else SELF if stats else WALL
    settings = Settings(
        counted, by_number(by), bool(recorded), stacked, handled, handlers, events, perf_map, mount=mount, measures=measures,
        values=tuple(values.definition(number, each) for number, each in enumerate(valued)) if values else (),
        value_trigger=values.trigger if values else "", strings=not no_strings, selected=selected,
        question=question.question if question else ((), "", ""),
        stack_values=_stack_definitions(of_stacks, valued_stacks), stack_filter=of_stacks.filter if of_stacks else "",
        stack_sum=of_stacks.names[1] if of_stacks else "",
    )  # fmt: skip
    selection = ReportSelection(stats, timed, traces, by, handlers, events, stacks, order, values, of_stacks)
    if targets is not None:
        refuse_program(settings)
        attach_and_report(targets, settings, selection, output, format_)
    is_asked = settings.arms
    if not is_asked:
        _check_no_report(output, as_json)
    if not (is_asked or mount):
        _replace_by_program()
    report = _opened(output, format_)
    if format_ == "parquet":
        prepare_rows()
    program, counts, journal = start(settings)
    from fprobe.run.ending import end_like
    from fprobe.run.launcher.report import report_after, status_after

    if not is_asked:
        end_like(status_after(program, counts, journal))
    end_like(report_after(program, counts, journal, selection, report, format_, output))


def refuse_program(settings: Settings) -> None:
    """Raise Failure if a program is given besides -p, or nothing to record."""
    if settings.mount:
        raise Failure("--mount is for a program that is started here; give a program instead of -p")
    words = click.get_current_context().meta[_WORDS]
    if words:
        raise Failure(f"give a running process (-p) or a program to run ({words[0]}), not both")
    if not settings.arms:
        raise Failure("there is nothing to record; give --stat, --hist, --trace, --stacks or -e")
