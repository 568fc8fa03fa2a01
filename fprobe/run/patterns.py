"""Patterns of functions of libraries."""

from __future__ import annotations

import re
from collections.abc import Iterable, Set
from fnmatch import fnmatchcase
from typing import NamedTuple

from fprobe.run.names import Named


class Pattern(NamedTuple):
    """`libz:inflate*`: functions of the libraries that `owner` means."""

    owner: str
    functions: str

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Raises ValueError for one without a library."""
        owner, colon, functions = text.partition(":")
        if not (owner and colon and functions):
            raise ValueError(f"the pattern is {text!r}; name a library and functions of it, as 'libz:inflate*'")
        return cls(owner, functions)

    def __str__(self) -> str:
        return f"{self.owner}:{self.functions}"

    def means(self, library: str) -> bool:
        """Whether `owner` means the library with this file name, as `libz` means libz.so.1."""
        stem = library.partition(".so")[0]
        return any(fnmatchcase(name, self.owner) for name in (library, stem, re.sub(r"-[\d.]+$", "", stem)))

    def is_settled(self, loaded: Set[str]) -> bool:
        """Whether no library can come that it means: it names one, and that is there."""
        return not set(self.owner) & set("*?[") and any(map(self.means, loaded))

    def shows(self, function: Named) -> bool:
        """Whether it means a function that was counted."""
        return self.means(function.library) and fnmatchcase(function.name, self.functions)


def parsed(texts: Iterable[str]) -> tuple[Pattern, ...]:
    """Each text's pattern. Raises ValueError for what is none."""
    return tuple(map(Pattern.parse, texts))


def shown(patterns: Iterable[Pattern], function: Named) -> bool:
    """Whether one of the patterns means a function; also if its name is not known, so that nothing is kept back."""
    return function.name.startswith("0x") or any(pattern.shows(function) for pattern in patterns)
