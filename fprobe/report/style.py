"""The looks of text: on a terminal, or none."""

from __future__ import annotations

from typing import Protocol


class Style(Protocol):
    """The looks of text on a terminal."""

    def dim(self, text: str) -> str:
        """Less bright."""

    def bold(self, text: str) -> str:
        """Stand out, as headings do."""

    def bad(self, text: str) -> str:
        """As a failure."""


class Plain:
    """Text as it is."""

    dim = bold = bad = staticmethod(str)
