"""Where output goes, and whether it is coloured."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from typing import Any

import click


@dataclass(frozen=True)
class Console:
    """`json`: print objects instead of text. `verbosity`: -1 quiet, 0, 1 verbose. `color`: whether to use colours."""

    json: bool
    color: bool
    verbosity: int

    def line(self, text: str = "") -> None:
        """Print a line of text; nothing with --json."""
        if not self.json:
            click.echo(text, color=self.color)

    def note(self, text: str) -> None:
        """Print what is about the run, not of it: left out by -q."""
        if self.verbosity >= 0:
            self.line(self.dim(text))

    def document(self, value: Any, *, indent: int | None = 2) -> None:
        """Print an object, with --json."""
        if self.json:
            click.echo(json.dumps(value, indent=indent, ensure_ascii=False))

    def object(self, value: Any) -> None:
        """Print an object on one line, with --json."""
        self.document(value, indent=None)

    def flush(self) -> None:
        """Have everything printed that was written."""
        sys.stdout.flush()

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


def wants_color(choice: str) -> bool:
    """Whether to use colours, by --color, NO_COLOR (https://no-color.org) and what stdout is."""
    if choice != "auto":
        return choice == "always"
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and sys.stdout.isatty()
