"""Calls that probes do not see, because a compiler has inlined the functions into their callers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ftrace.core.glob import parse
from sandbox.images.sources import sources
from sandbox.symbols.names import split_owner


class InlinedCalls:
    """What is still to be told about inlined calls of the functions that patterns name; each sentence is told once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def untold(self, patterns: Iterable[str], *, with_globs: bool) -> list[str]:
        """New sentences. `with_globs`: also for globs, once the program has compiled what they are to match."""
        found = dict.fromkeys(each for pattern in patterns for each in _sentences(pattern, with_globs))
        new = [each for each in found if each not in self._told]
        self._told.update(new)
        return new


def _sentences(pattern: str, with_globs: bool) -> Iterator[str]:
    owner, _, wanted = split_owner(pattern)
    for source in sources():
        yield from source.inlined_calls(owner, wanted, parse(wanted).matches, with_globs)
