"""What a mutant is."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Mutant(NamedTuple):
    """One change of one file, and the tests that should notice it."""

    name: str
    file: str
    """Relative to the root of the tree."""
    old: str
    """What occurs in the file exactly once, its docstring apart, which may have a listing of the text."""
    new: str
    tests: tuple[str, ...]
    """Node ids of pytest, relative to the root: files, or functions, which may be marked `stress` if there are no files."""
    harmless: str = ""
    """Why the change makes no difference that a test could notice; then its tests are not run."""

    def changed(self, text: str) -> str:
        """The file's text with this change. Raises ValueError if the old text does not occur in it exactly once."""
        begin = text.index('"""', 3) if text.startswith('"""') else 0
        if (count := text.count(self.old, begin)) != 1:
            raise ValueError(f"mutant {self.name}: {self.old!r} occurs {count} times in {self.file}, not once")
        return text[:begin] + text[begin:].replace(self.old, self.new)


class Part(NamedTuple):
    """A file whose changes are listed one below the other, with the tests that most of them are noticed by."""

    file: str
    tests: tuple[str, ...]

    def without(self, name: str, old: str, *tests: str, harmless: str = "") -> Mutant:
        """The line `old` is gone."""
        return self.changed(name, old, "", *tests, harmless=harmless)

    def changed(self, name: str, old: str, new: str, *tests: str, harmless: str = "") -> Mutant:
        """`old` is `new`."""
        return Mutant(name, self.file, old, new, tests or self.tests, harmless)
