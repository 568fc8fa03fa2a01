"""A table of a program's calls that is refreshed while it runs."""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from fprobe.report.columns import fitting, room, shortened
from fprobe.report.counts import Calls
from fprobe.report.durations import duration, levels
from fprobe.report.tables import group_heading
from fprobe.run.launcher import results
from fprobe.run.launcher.attached import AttachedProcesses
from fprobe.run.launcher.launching import Program, stop_by
from fprobe.run.launcher.names import Named
from fprobe.run.launcher.remarks import conclusion, troubles
from fprobe.run.launcher.results import FAILED, Results
from fprobe.run.launcher.screen import Screen
from fprobe.run.launcher.start_up import StartUp
from fprobe.run.launcher.top_view import WIDTHS, TopView
from fprobe.run.session import above_standard
from sandbox.process.writing import write_all
from sandbox.x86_64.tsc import Ticks

_HISTORY = WIDTHS["GRAPH"]
"""Updates that a row's graph shows, if there is space."""
_FIRST_UPDATE = 0.2
"""Seconds before the first update."""
_SILENT = 1.0
"""Seconds after which the table says why the program has not begun."""
_HEAD = 2
_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_Key = tuple[Named, str]
"""A function, and the group of its calls: a caller, a thread or nothing."""


@dataclass
class Row:
    """The calls of a function, or of a function by a caller or thread, in all processes.

    `rates`: calls per second in each of the last updates, newest last.
    """

    name: Named
    group: str
    calls: Calls
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=_HISTORY))

    @property
    def text(self) -> str:
        """The function, and the group of its calls."""
        return f"{self.name}{self.group}"

    @property
    def rate(self) -> float:
        """Calls per second since the last update."""
        return self.rates[-1] if self.rates else 0.0


class Table:
    """The rows, kept from one update to the next. `by`: function, caller or thread."""

    def __init__(self, by: str = "function") -> None:
        self.rows: dict[_Key, Row] = {}
        self._by = by

    def update(self, found: Results, seconds: float) -> None:
        """Update the rows from `found`. `seconds`: time since the last update."""
        before = {key: row.calls.hits for key, row in self.rows.items()}
        for key, calls in _grouped(found, self._by).items():
            row = self.rows.setdefault(key, Row(*key, calls))
            row.calls = calls
            row.rates.append((calls.hits - before.get(key, 0)) / seconds)

    def ordered(self, view: TopView) -> list[Row]:
        """The rows that the view shows: numbers in descending order, names in ascending order, or the reverse."""
        shown = [row for row in self.rows.values() if view.shows(row.text)]
        shown.sort(key=lambda row: (row.name, row.group), reverse=view.is_reversed)
        if view.sort != "name":
            shown.sort(key=lambda row: _value(row, view.sort), reverse=not view.is_reversed)
        return shown

    def text(self, view: TopView, rate: float, height: int, width: int) -> Iterator[str]:
        """The lines of the table. `rate`: ticks per nanosecond."""
        rows = self.ordered(view)
        shown = rows[: view.rows or max(height - _HEAD - 1 - len(view.help), 1)]
        total = sum(row.rate for row in rows)
        called = f"{len({row.name for row in rows})} functions called"
        if self._by != "function":
            called += f", {len(rows)} rows by {self._by}"
        yield f"{called}, {total:,.0f} calls/s; {len(shown)} shown, {view.described}"[:width]
        yield from (line[:width] for line in view.help)
        names = [row.text for row in shown]
        heading = f"FUNCTION{group_heading(self._by)}"
        columns = fitting(WIDTHS, view.narrower, [*names, heading], width)
        heads = "".join(f"{head:{'<' if head == 'GRAPH' else '>'}{space}} " for head, space in columns.items())
        yield f"{heads}{heading}"[:width]
        for row, name in zip(shown, shortened(names, room(columns, width)), strict=True):
            yield _line(row, rate, columns, name)[:width]


def _grouped(found: Results, by: str) -> dict[_Key, Calls]:
    made: dict[_Key, Calls] = {}
    for process in found.processes:
        for calls in process.grouped(by):
            key = process.names.function(calls.ip), process.group(calls, by)
            made.setdefault(key, Calls(calls.ip)).add(calls)
    return made


def _value(row: Row, key: str) -> float:
    calls = row.calls
    if key in ("p50", "p99"):
        return calls.percentile(int(key[1:]))
    return {
        "total": calls.total,
        "self": calls.self_total,
        "rate": row.rate,
        "calls": calls.hits,
        "average": calls.average,
    }[key]


def _line(row: Row, rate: float, columns: dict[str, int], name: str) -> str:
    calls = row.calls
    times = {
        "TOTAL": calls.total,
        "SELF": calls.self_total,
        "AVERAGE": calls.average,
        "P50": calls.percentile(50),
        "P99": calls.percentile(99),
    }
    texts = {head: duration(time / rate, 1) for head, time in times.items()}
    texts |= {
        "CALLS": f"{calls.hits:,}",
        "CALLS/S": f"{row.rate:,.0f}",
        "GRAPH": levels(row.rates)[-columns.get("GRAPH", 1) :],
    }
    return "".join(f"{texts[head]:>{space}} " for head, space in columns.items()) + name


Report = Callable[[Results, Ticks], None]
"""Writes a report of what was counted in all."""


def follow(
    program: Program, counts: int, journal: int, view: TopView, output: int, report: Report | None = None
) -> int:
    """Show the table until the program ends, then print its output from the descriptor `output`. Returns an exit status.

    It is the program's, or that of a failure if nothing was probed.
    """
    ticks, table, screen = Ticks(), Table(view.by), Screen(2)
    ended, start_up = os.pidfd_open(program.pid), StartUp()
    start_up.follow(journal)
    begin = before = due = time.monotonic()
    due += min(_FIRST_UPDATE, view.delay)
    is_over = False
    with _woken_by(signal.SIGCHLD, signal.SIGWINCH) as woken, screen:
        while not is_over:
            readable = select.select([ended, woken], [], [], max(due - time.monotonic(), 0))[0]
            if woken in readable:
                os.read(woken, 1 << 10)
                _stop_with(program, screen)
            else:
                is_over, now = ended in readable, time.monotonic()
                table.update(found := results.read(counts, journal), max(now - before, 1e-3))
                before, due = now, now + view.delay
            if not is_over and (screen.replaces or woken not in readable):
                lines = list(table.text(view, ticks.per_nanosecond(), *screen.size))
                if (
                    (seconds := time.monotonic() - begin) >= _SILENT
                    and (doing := start_up.text_now())
                    and screen.replaces
                ):
                    lines[0] = f"{doing}: {seconds:.0f} s"[: screen.size[1]]
                screen.show(lines)
    found.status = program.wait()
    _copy(output, 1, screen)
    screen.print([*table.text(view, ticks.per_nanosecond(), *screen.size), *_remarks(found)])
    if report is not None:
        report(found, ticks)
    return found.exit_status or (FAILED if screen.failure is not None else 0)


def follow_attached(processes: AttachedProcesses, view: TopView) -> Results:
    """Show the table on standard output as long as the processes are wanted, and once more at the end, which is returned.

    Keys of a terminal change the view. That nobody reads the table any more is the end, too, and so is that it cannot be
    written, which raises OSError.
    """
    table, screen, before = Table(view.by), Screen(1, with_keys=True), time.monotonic()
    view = view._replace(has_keys=screen.keys is not None)
    due = before + min(_FIRST_UPDATE, view.delay)

    def update() -> Results:
        nonlocal before, due
        found, now = processes.results(), time.monotonic()
        table.update(found, max(now - before, 1e-3))
        before, due = now, now + view.delay
        return found

    def lines() -> list[str]:
        return list(table.text(view, processes.ticks.per_nanosecond(), *screen.size))

    with _woken_by(signal.SIGWINCH, signal.SIGCONT, signal.SIGTSTP, *_ENDING) as woken, screen:
        while not (view.is_over or screen.is_closed) and processes.wait_until(due, [woken, *screen.keyboard]):
            _take_signals(woken, screen)
            if screen.keys is not None:
                view = functools.reduce(TopView.after, screen.keys.pressed(), view)
            if is_due := time.monotonic() >= due:
                update()
            if is_due or screen.replaces:
                screen.show(lines())
    found = update()
    view = view._replace(has_keys=False, is_typing=False)
    screen.print([*lines(), *_remarks(found)])
    if screen.failure is not None:
        raise screen.failure
    return found


@contextlib.contextmanager
def _woken_by(*numbers: signal.Signals) -> Iterator[int]:
    """A descriptor from which the numbers of these signals can be read that come inside the block, unless they are ignored."""
    woken, write = map(above_standard, os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC))
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    before = {number: signal.getsignal(number) for number in numbers}
    taken = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in taken:
        signal.signal(number, lambda *_: None)
    try:
        yield woken
    finally:
        for number in taken:
            signal.signal(number, before[number])
        signal.set_wakeup_fd(-1)
        os.close(woken)
        os.close(write)


def _take_signals(woken: int, screen: Screen) -> None:
    """Stop or end by signals that have come; the terminal shows what it showed before the table."""
    try:
        arrived = os.read(woken, 1 << 10)
    except BlockingIOError:
        return
    for number in arrived:
        if number in _ENDING:
            screen.__exit__()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif number == signal.SIGTSTP:
            screen.__exit__()
            stop_by(number)
            screen.__enter__()
        elif number == signal.SIGCONT and screen.keys is not None:
            screen.keys.enter()


def _stop_with(program: Program, screen: Screen) -> None:
    """Stop if the program is stopped. Meanwhile the terminal shows what it showed before the table."""
    if number := program.stopped_by():
        screen.__exit__()
        program.stop(number)
        screen.__enter__()


def _remarks(found: Results) -> Iterator[str]:
    """Lines below the table: errors, functions and processes that are not probed, patterns that match nothing."""
    for process in found.processes:
        yield from troubles(process, found.told)
    yield from conclusion(found, is_empty=not any(process.calls for process in found.processes))


def _copy(source: int, target: int, screen: Screen) -> None:
    os.lseek(source, 0, os.SEEK_SET)
    try:
        while data := os.read(source, 1 << 16):
            write_all(target, data)
    except OSError as error:
        screen.print([f"fprobe: the program's output could not be written: {error.strerror}"])
