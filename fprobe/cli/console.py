"""Output of the command line: text, JSON, colours, the progress line."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TextIO

import click

from fprobe.cli.failure import Failure
from fprobe.cli.formats import report_file
from sandbox.process import terminal
from sandbox.process.printable import printable_line, styled
from sandbox.process.writing import as_bytes

_ERASE_LINE = "\r\x1b[K"
_UNKNOWN = 0.05
"""Seconds until it is asked again what is done."""
_BOLD, _DIM, _RED, _GREEN = 1, 2, 31, 32
_AT_ONCE = 256
"""Lines that are printed together, where many follow each other."""


@dataclass
class Console:
    """`json`: print objects instead of text. `verbosity`: -1 quiet, 0, 1 verbose. `color`: whether to use colours.

    `form`: the format, text, json, ndjson or csv; `output`: the file, instead of standard output;
    `beside`: a file that is written in addition.
    """

    json: bool
    color: bool
    verbosity: int
    finished: bool = False
    """Whether a document was printed; there is at most one."""
    form: str = "text"
    output: str | None = None
    beside: str | None = None
    _stream: TextIO | None = None

    def line(self, text: str = "") -> None:
        """Print a line of text; nothing with --json."""
        if not self.json:
            click.echo(printable_line(text), color=self.color, file=self._file)

    def lines(self, texts: Iterable[str], *, is_data: bool = False) -> None:
        """Print many lines, some at a time; before an error of `texts`, those that are there. `is_data`: see `data`."""
        ready: list[str] = []
        try:
            for text in texts:
                ready.append(text)
                if len(ready) == _AT_ONCE:
                    taken, ready = ready, []
                    self._print(taken, is_data)
        finally:
            self._print(ready, is_data)

    def data(self, text: str) -> None:
        """Print a line that a program will read: as it is, but on a terminal."""
        stream = self._file or sys.stdout
        if stream.isatty():
            text = printable_line(text)
        click.echo(as_bytes(text) if hasattr(stream, "buffer") else text, file=stream, color=True)

    def _print(self, texts: Sequence[str], is_data: bool) -> None:
        if texts and is_data:
            self.data("\n".join(texts))
        elif texts and not self.json:
            click.echo("\n".join(map(printable_line, texts)), color=self.color, file=self._file)

    def note(self, text: str) -> None:
        """Print information about the run, which -q omits."""
        if self.verbosity >= 0:
            self.line(self.dim(text))

    @property
    def width(self) -> int | None:
        """The number of columns for text; None in a file, or where it is not known."""
        return terminal.width(1) if self._file is None else None

    @property
    def _file(self) -> TextIO | None:
        """The stream to print to; None for standard output."""
        if self._stream is None and self.output is not None:
            self._stream = os.fdopen(report_file(self.output), "w", encoding="utf-8", errors="surrogateescape")
        return self._stream

    def document(self, value: Any, rows: Sequence[dict[str, Any]] = ()) -> None:
        """With --json, print the whole output as one object; in the formats ndjson and csv its rows."""
        if not self.json:
            return
        from fprobe.report.rows import csv_lines, json_text

        if self.form == "csv":
            lines = csv_lines(lambda: rows)
        else:
            lines = map(json_text, rows) if self.form == "ndjson" else iter([json_text(value, indent=2)])
        for line in lines:
            self.data(line)
        self.finished = True
        self.flush()

    def object(self, value: Any) -> None:
        """With --json, print one of several objects, on one line."""
        if self.json and self.form != "csv":
            from fprobe.report.rows import json_text

            self.data(json_text(value))

    def failure(self, failure: click.ClickException) -> None:
        """With --json, print an object that describes the failure, unless a document that includes it was printed."""
        if not self.finished:
            value = failure.as_object() if isinstance(failure, Failure) else {"message": failure.format_message()}
            self.object({"type": "error", **value})
        if isinstance(failure, Failure):
            failure.is_shown_as_json = self.json

    def flush(self) -> None:
        """Flush standard output."""
        (self._file or sys.stdout).flush()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """With --json, redirect the program's stdout to stderr within the block, so that ours contains only JSON."""
        if not self.json or self._file is not None:
            yield
            return
        self.flush()
        ours = os.dup(1)
        os.dup2(2, 1)
        try:
            with open(ours, "w", encoding="utf-8", errors="surrogateescape", closefd=False) as self._stream:
                yield
        finally:
            self._stream = None
            os.dup2(ours, 1)
            os.close(ours)

    def dim(self, text: str) -> str:
        """`text`, dimmed."""
        return styled(text, _DIM) if self.color and text else text

    def bold(self, text: str) -> str:
        return styled(text, _BOLD) if self.color else text

    def good(self, text: str) -> str:
        """`text`, in the colour for success."""
        return styled(text, _GREEN) if self.color else text

    def bad(self, text: str) -> str:
        """`text`, in the colour for failure."""
        return styled(text, _RED) if self.color else text


def wants_color(choice: str) -> bool:
    """Whether to use colours: depends on --color, NO_COLOR (https://no-color.org), and whether stdout is a terminal."""
    if choice != "auto":
        return choice == "always"
    return not os.environ.get("NO_COLOR") and _takes_escapes(sys.stdout)


def count(number: int, noun: str) -> str:
    """`1 hit`, `2 hits`, `1 miss`, `2 misses`."""
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


@contextmanager
def progress_line(work: Callable[[], str], after: float = 1) -> Iterator[None]:
    """After `after` seconds, show the text of `work()` and the seconds so far on standard error; erase the line at the end.

    While the text is empty, there is nothing to show.

    Nothing is shown with --json or -q, or if standard error is not a terminal that can erase a line.
    """
    if not _progress_is_wanted():
        yield
        return
    ended = threading.Event()
    reporter = threading.Thread(target=_report_progress, args=(work, after, ended), name="fprobe-progress", daemon=True)
    reporter.start()
    try:
        yield
    finally:
        ended.set()
        reporter.join()


def _progress_is_wanted() -> bool:
    context = click.get_current_context(silent=True)
    options = context.params if context else {}
    if options.get("as_json") or options.get("quiet"):
        return False
    return sys.stderr is not None and _takes_escapes(sys.stderr)


def _takes_escapes(stream: TextIO) -> bool:
    return stream.isatty() and terminal.takes_escapes(stream.fileno())


def _report_progress(work: Callable[[], str], after: float, ended: threading.Event) -> None:
    begin = time.monotonic()
    if ended.wait(after):
        return
    is_shown = False
    while True:
        if doing := work():
            text = f"{doing}: {time.monotonic() - begin:.0f} s"
            _write(_ERASE_LINE + text[: terminal.size(2)[1] - 1])  # a line that wraps could not be erased
            is_shown = True
        if ended.wait(1 if doing else _UNKNOWN):
            break
    if is_shown:
        _write(_ERASE_LINE)


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
