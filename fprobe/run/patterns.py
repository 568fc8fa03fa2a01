"""Patterns of functions, as `libz:inflate*`: what may still come that one of them means."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ftrace.filters.resolve import Found, resolve


class Pattern:
    """A pattern and what of it has been found. Owner and name may both be globs; without an owner modules are meant."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.reason = ""
        """Why nothing has been found, as a sentence."""
        self._is_found = False
        self._names_one = ":" in text and not re.search(r"[*?\[]", text.partition(":")[0])

    @property
    def is_settled(self) -> bool:
        """Whether nothing can come that it means: it names one library, and that is there."""
        return self._is_found and self._names_one

    def found(self) -> list[Found]:
        """The functions that it means now."""
        try:
            functions = resolve(self.text)
        except LookupError as error:
            self.reason = str(error.args[0])
            return []
        self._is_found = True
        return functions


def new_functions(functions: Iterable[Found], known: dict[int, Found]) -> Iterator[Found]:
    """Those of the functions that are not in `known`, or whose place another image has taken since."""
    for each in functions:
        before = known.get(each.function.address)
        if before is None or not before.image.is_live:
            yield each
