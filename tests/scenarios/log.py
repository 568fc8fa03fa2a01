"""The log of a replay: lines with their levels, and what a comparison has to know of each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """A line as it is printed. `unstored`: which words of its `data=` nobody has stored in this call.

    `extra`: it comes from an entry handler that runs although there is no return node, which the kernel does not do.
    """

    text: str
    unstored: frozenset[int] = frozenset()
    extra: bool = False


class Log:
    """Lines as they are written. `level` is the indentation of the next one."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.level = 0

    def write(self, text: str, unstored: frozenset[int] = frozenset(), extra: bool = False) -> None:
        """Add a line at the level as it is."""
        self.lines.append(Line(f"{'  ' * self.level}{text}", unstored, extra))

    @contextmanager
    def deeper(self, levels: int = 1) -> Iterator[None]:
        """Write what follows some levels deeper."""
        self.level += levels
        try:
            yield
        finally:
            self.level -= levels
