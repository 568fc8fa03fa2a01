"""Patterns of functions, as `libz:inflate*`: what may still come that one of them means."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ftrace.filters.glob import parse
from ftrace.filters.resolve import Found, resolve
from sandbox.images.image import Image
from sandbox.images.sources import sources


class Pattern:
    """A pattern and what of it has been found. Owner and name may both be globs; without an owner modules are meant."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.reason = ""
        """Why nothing has been found, as a sentence."""
        self._is_found = False
        self._looked_at: list[tuple[Image, int]] | None = None
        self._functions: list[Found] = []
        self._names_one = ":" in text and not re.search(r"[*?\[]", text.partition(":")[0])

    @property
    def is_settled(self) -> bool:
        """Whether nothing can come that it means: it names one library, and that is there."""
        return self._is_found and self._names_one

    def found(self) -> list[Found]:
        """The functions that it means now. It is looked up again only when images that it names have changed."""
        images = [(image, len(image.functions)) for image in self._images()]
        if images == self._looked_at:
            return self._functions
        self._looked_at = images
        self._functions = self._look_up()
        return self._functions

    def _images(self) -> list[Image]:
        owner, colon, _ = self.text.partition(":")
        if not colon:
            return [image for source in sources() if not source.is_named for image in source.images()]
        meant = parse(owner)
        return [image for source in sources() for image in source.images() if any(map(meant.matches, image.names))]

    def _look_up(self) -> list[Found]:
        if not self._looked_at and ":" not in self.text:  # to look for names that are like it takes seconds
            self.reason = f"the program has loaded no module; a function of a library is written libNAME:{self.text}"
            return []
        try:
            functions = resolve(self.text)
        except LookupError as error:
            self.reason = str(error.args[0])
            return []
        self._is_found, self.reason = True, ""
        return functions


def new_functions(functions: Iterable[Found], known: dict[int, Found]) -> Iterator[Found]:
    """Those of the functions that are not in `known`, or whose place another image has taken since."""
    for each in functions:
        before = known.get(each.function.address)
        if before is None or not before.image.is_live:
            yield each
