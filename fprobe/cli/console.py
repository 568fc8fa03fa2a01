"""Where output goes, and whether it is coloured."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TextIO

import click


@dataclass
class Console:
    """`json`: print objects instead of text. `verbosity`: -1 quiet, 0, 1 verbose. `color`: whether to use colours."""

    json: bool
    color: bool
    verbosity: int
    finished: bool = False
    """A document was printed: there may be no second one."""
    _stream: TextIO | None = None

    def line(self, text: str = "") -> None:
        """Print a line of text; nothing with --json."""
        if not self.json:
            click.echo(text, color=self.color)

    def note(self, text: str) -> None:
        """Print what is about the run, not of it: left out by -q."""
        if self.verbosity >= 0:
            self.line(self.dim(text))

    def document(self, value: Any) -> None:
        """Print all that there is to say as one object, with --json."""
        if self.json:
            click.echo(_json(value, indent=2), file=self._stream)
            self.finished = True
            self.flush()

    def object(self, value: Any) -> None:
        """Print one object of several, on a line, with --json."""
        if self.json:
            click.echo(_json(value), file=self._stream)

    def failure(self, value: dict[str, Any]) -> None:
        """Print an object that says what went wrong, with --json, unless a document was printed that says it."""
        if not self.finished:
            self.object({"type": "error", **value})

    def flush(self) -> None:
        """Have everything printed that was written."""
        (self._stream or sys.stdout).flush()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """With --json, while this is entered: what the program writes to stdout goes to stderr, so that ours is JSON."""
        if not self.json:
            yield
            return
        self.flush()
        ours = os.dup(1)
        os.dup2(2, 1)
        try:
            with open(ours, "w", encoding="utf-8", closefd=False) as self._stream:
                yield
        finally:
            self._stream = None
            os.dup2(ours, 1)
            os.close(ours)

    def dim(self, text: str) -> str:
        """`text`, receding."""
        return click.style(text, dim=True) if self.color and text else text

    def bold(self, text: str) -> str:
        """`text`, prominent."""
        return click.style(text, bold=True) if self.color else text

    def good(self, text: str) -> str:
        """`text`, in the colour of what is well."""
        return click.style(text, fg="green") if self.color else text

    def bad(self, text: str) -> str:
        """`text`, in the colour of what is not."""
        return click.style(text, fg="red") if self.color else text


def _json(value: Any, indent: int | None = None) -> str:
    """JSON, which knows no NaN and no infinity: these become strings."""
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), indent=indent)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def wants_color(choice: str) -> bool:
    """Whether to use colours, by --color, NO_COLOR (https://no-color.org) and what stdout is."""
    if choice != "auto":
        return choice == "always"
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and sys.stdout.isatty()
