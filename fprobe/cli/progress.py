"""A progress line on a terminal during long work."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

_ERASE_LINE = "\r\x1b[K"


@contextmanager
def shown(work: Callable[[], str], after: float = 1) -> Iterator[None]:
    """After `after` seconds, show the text of `work()` and the seconds so far on standard error; erase the line at the end.

    Nothing is shown with --json or -q, or if standard error is not a terminal that can erase a line.
    """
    if not _is_wanted():
        yield
        return
    ended = threading.Event()
    reporter = threading.Thread(target=_report, args=(work, after, ended), name="fprobe-progress", daemon=True)
    reporter.start()
    try:
        yield
    finally:
        ended.set()
        reporter.join()


def _is_wanted() -> bool:
    context = click.get_current_context(silent=True)
    options = context.params if context else {}
    if options.get("as_json") or options.get("quiet") or os.environ.get("TERM") == "dumb":
        return False
    return sys.stderr is not None and sys.stderr.isatty()


def _report(work: Callable[[], str], after: float, ended: threading.Event) -> None:
    begin = time.monotonic()
    if ended.wait(after):
        return
    while True:
        _write(f"{_ERASE_LINE}{work()}: {time.monotonic() - begin:.0f} s")
        if ended.wait(1):
            break
    _write(_ERASE_LINE)


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
