"""`fprobe trace`: every call with arguments, result, nesting and duration."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from fprobe.cli import candidates
from fprobe.cli.attaching import attach_and_report, attached_to, exit_code, refuse_with_pid
from fprobe.cli.console import Console
from fprobe.cli.options import (
    CallingCommand,
    ProgramTarget,
    call_option,
    call_words,
    file_options,
    output_options,
    program_options,
)

if TYPE_CHECKING:
    from fprobe.attachment import Attachment
    from fprobe.calls.records import Event
    from fprobe.cli.calls import ProgramFunctions
    from fprobe.cli.matching import MatchedFunctions
    from fprobe.cli.program import ProgramCall
    from fprobe.cli.running import Outcome
    from fprobe.run.launcher.attached import Targets
    from fprobe.run.session import Settings
    from sandbox.loading.module import Module

_EPILOG = """\b
Examples:
  fprobe trace 'vfs_*' --exclude vfs_fsync
  fprobe trace 'func*' --program prog.ll --call main 10
  fprobe trace 'vfs_read' --native handler.py:large_reads:read_done
  fprobe trace -p 4711 'libz:deflate*' --duration 2
  fprobe trace '*' --program prog.c --limit 1000 --json |
      jq 'select(.type == "exit")'

A duration includes what tracing the calls inside it costs: some 50 ns each.
`fprobe stat` measures without that.
"""


@click.command("trace", cls=CallingCommand, epilog=_EPILOG, short_help="Show every call.")
@click.argument("patterns", metavar="PATTERN...", nargs=-1, required=True, shell_complete=candidates.functions)
@click.option(
    "--exclude", "-x", multiple=True, metavar="PATTERN", shell_complete=candidates.functions, help="Not these."
)
@click.option(
    "--limit", "-n", type=click.IntRange(min=1), metavar="N", help="Show the first N calls, and count the others."
)
@click.option(
    "--native",
    metavar="FILE:ENTRY[:EXIT]",
    shell_complete=candidates.files,
    help="Run these native handlers instead of showing calls, and print the maps of FILE.",
)
@click.option("--no-strings", "no_strings", is_flag=True, help="Record nothing that pointers lead to.")
@call_option
@program_options
@output_options
@file_options("text", "ndjson")
def trace_command(
    patterns: tuple[str, ...],
    exclude: tuple[str, ...],
    limit: int | None,
    native: str | None,
    no_strings: bool,
    target: ProgramTarget,
    console: Console,
) -> None:
    """Show every call of the functions that match PATTERN: arguments, result, nesting, duration.

    PATTERN is a function's name or a glob (*, ?, [a-z]). With --json: one object per line, with a "type".
    """
    if target.running is not None:
        _trace_running(target.running, patterns, exclude, limit, native, no_strings, console)
    from fprobe.cli import matching, program
    from fprobe.cli import native as natively

    handlers = natively.load(native) if native is not None else None
    module = program.load(target)
    call = program.prepare_call(module, call_words(), target)
    match = matching.match_or_fail(module, patterns, exclude, target.notrace)
    if handlers:
        natively.run(console, match, call, handlers)
        return
    _Session(console, module, match, call, not no_strings, limit or 0).run()


def _trace_running(
    targets: Targets, patterns: tuple[str, ...], exclude: tuple[str, ...], limit: int | None, native: str | None,
    no_strings: bool, console: Console,
) -> None:  # fmt: skip
    """`fprobe trace -p`. Ends this process."""
    from fprobe.cli.run import checked, checked_native
    from fprobe.run.launcher.report_selection import ReportSelection
    from fprobe.run.session import Settings

    refuse_with_pid(exclude=exclude, limit=limit, call=call_words())
    traced, handlers = checked(patterns), checked_native(native, patterns)
    settings = (
        Settings(handled=traced, native=handlers)
        if handlers
        else Settings(traced, with_events=True, strings=not no_strings)
    )
    if handlers or console.json:
        selection = ReportSelection((), (), traced, "function", handlers)
        is_whole = click.get_current_context().params["as_json"]  # of all processes, unlike a line for each call
        attach_and_report(targets, settings, selection, console.output, "json" if is_whole else console.form)
    _show_calls(targets, settings, console)


def _show_calls(targets: Targets, settings: Settings, console: Console) -> None:
    """Show the calls of running processes as they are made. Ends this process."""
    from fprobe.cli.interrupting import ctrl_c, end_process
    from fprobe.run.launcher.live_calls import LiveCalls

    def write(lines: Iterable[str]) -> None:
        for line in lines:
            console.line(line)
        console.flush()

    with attached_to(targets, settings) as processes:
        live = LiveCalls(processes, write)
        live.follow()
        pressed = min(ctrl_c.presses, 1)
    live.finish(lambda: ctrl_c.presses == pressed)  # once more, also while it detached, and the rest is left out
    end_process(exit_code(processes.results()))


def _functions(module: Module, match: MatchedFunctions) -> ProgramFunctions:
    from fprobe.cli.calls import ProgramFunctions
    from fprobe.cli.program import signature_of

    return ProgramFunctions(
        {site.address: site.symbol for site in match.sites}, lambda symbol: signature_of(module, symbol)
    )


class _Session:
    """One run of the program, traced."""

    def __init__(
        self,
        console: Console,
        module: Module,
        match: MatchedFunctions,
        call: ProgramCall,
        strings: bool,
        limit: int,
    ) -> None:
        from fprobe.calls.capture import CallCapture
        from fprobe.cli.calls import Objects, TraceWords
        from fprobe.report.nesting import Nesting
        from fprobe.report.tree import CallTree
        from sandbox import symbol_table

        self.console, self.module, self.match, self.call = console, module, match, call
        self.functions, self.limit = _functions(module, match), limit
        self.capture = CallCapture(self.functions.planned(), strings=strings, limit=limit)
        self.calls: Nesting[Event] = Nesting()
        self.tree, self.words = CallTree(console), TraceWords(self.functions, console)
        self.objects = Objects(self.functions, symbol_table.describe)

    def run(self) -> None:
        """Attach, run, detach, summarise. Raises Failure if the program failed; ends the process after Ctrl-C."""
        from fprobe.cli.interrupting import ctrl_c
        from fprobe.cli.matching import attached
        from fprobe.cli.running import run

        ctrl_c.hold_for_run()
        with self.console.alone(), attached(self.match, action=self.capture) as probe:
            self._begin()
            outcome = run(self.call, self._show)
            self._show_rest(probe)
            self._end(outcome, probe)

    def _begin(self) -> None:
        from fprobe.report.tree import HEADER

        self.console.note(f"# tracing {self.match.described}, calling {self.call}")
        if not self.limit and sys.stdout.isatty():
            self.console.note("# every call is shown: --limit N shows the first N, Ctrl-C ends")
        self.console.note(HEADER)
        skipped = [{"name": name, "reason": reason} for name, reason in self.match.skipped]
        begin = {"type": "begin", "program": self.module.name, "call": str(self.call), "matched": self.match.matched}
        self.console.object(begin | {"attached": len(self.match.sites), "skipped": skipped})

    def _show(self) -> bool:
        """Print new events. Returns whether there may be more."""
        events = self.capture.take()
        steps = self.calls.steps(events)
        if self.console.json:
            for item in self.objects.objects(steps):
                self.console.object(item)
        else:
            for line in self.tree.lines(steps, self.words):
                self.console.line(line)
        self.console.flush()
        return bool(events)

    def _show_rest(self, probe: Attachment[Any]) -> None:
        probe.disable()
        self.capture.stop_waiting()
        while self._show():
            pass
        for line in self.tree.flush():
            self.console.line(line)

    def _end(self, outcome: Outcome, probe: Attachment[Any]) -> None:
        from fprobe.cli.conclusion import conclude, summarise

        summarise(self.console, self.call, outcome, self.match, probe, self._remarks())
        conclude(outcome)

    def _remarks(self) -> list[str]:
        from fprobe.cli.console import count

        remarks = []
        if self.capture.over_limit:
            remarks.append(f"{count(self.capture.over_limit, 'call')} more than --limit {self.limit}: not shown")
        if self.capture.lost:
            remarks.append(f"{count(self.capture.lost, 'record')} lost: calls came faster than they could be shown")
        unfinished = [self.functions.symbols[call.ip].readable for call in self.calls.unfinished()]
        if unfinished:
            remarks.append(f"not returned: {' > '.join(unfinished[:20])}")
        return remarks
