"""From patterns to functions of any image: `vfs_*`, `libz:inflate*`, `*:SSL_*`.

The part before the colon is a pattern for the names of images. A pattern without a colon matches only functions of the
sandbox's modules. LLVM, which this package loads itself, is meant only by patterns with `llvm` before the colon.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

from ftrace.core.glob import PatternKind, parse_name, places
from sandbox.elf.ehframe import is_cold
from sandbox.images.image import Image
from sandbox.images.near_misses import near_misses, no_image
from sandbox.images.process_text import JIT_NAMES
from sandbox.images.sources import sources
from sandbox.symbols.file_names import split_folder
from sandbox.symbols.names import names_owner, split_owner
from sandbox.symbols.perfmap import perf_map
from sandbox.symbols.table import Symbol, owner_text, preference


class ImageFunction(NamedTuple):
    """A function that a pattern matches, and the image it is in."""

    image: Image
    function: Symbol

    def __str__(self) -> str:
        return f"{self.function.readable}{owner_text(self.image.name)}"

    @property
    def pattern(self) -> str:
        """`library:function`, as patterns and lines of events can have it."""
        return f"{self.image.written}:{self.function.name}"


def find_functions(pattern: str) -> list[ImageFunction]:
    """The functions that `pattern` matches, each once, image by image and ascending by address.

    Of several names of a function, the one is listed that matches and that programmers write. An indirect function (IFUNC) is
    the one that was chosen in this process. Raises LookupError, with similar names, if there is none; OSError if a library's
    file cannot be read.
    """
    owner, colon, wanted = split_owner(pattern) if names_owner(pattern) else ("", "", pattern)
    meant = list(images_meant(owner if colon else None))
    if not meant and owner == "perf":
        raise LookupError(f"no other compiler's code that is mapped executable is declared in {perf_map.path}")
    if not meant and colon:
        raise LookupError(no_image(owner, wanted))
    found = list(_functions_in(meant, wanted))
    if not found:
        raise LookupError(f"no function of {_shown(meant, owner)} matches {wanted!r}{near_misses(wanted, meant)}")
    return found


def why_none(pattern: str) -> str:
    """Why `pattern` matches nothing now, with similar names; '' if it matches. Raises OSError as `find_functions`."""
    try:
        find_functions(pattern)
    except LookupError as error:
        return str(error.args[0])
    return ""


def is_compiled(pattern: str) -> bool:
    """Whether `pattern` names code of JIT compilers (JIT_NAMES before the colon), more of which may be compiled later."""
    owner, colon, _ = split_owner(pattern)
    return bool(colon) and owner in JIT_NAMES


def is_there(pattern: str) -> bool:
    """Whether `pattern` matches anything now. Raises OSError if a library's file cannot be read."""
    owner, _, wanted = split_owner(pattern)
    return any(True for _ in _functions_in(images_meant(owner), wanted))


def may_be_compiled(pattern: str) -> bool:
    """Whether `pattern` names code that JIT compilers may compile later."""
    owner, _, wanted = split_owner(pattern)
    return any(source.may_compile(owner, parse_name(wanted).matches) for source in sources())


def images_meant(owner: str | None) -> Iterator[Image]:
    """The images that `owner`, what is before the colon of a pattern, means; None: those that patterns without a colon mean."""
    folder, name = split_folder(owner or "")
    if folder:
        yield from (image for image in images_meant(name) if image.is_in(folder))
        return
    pattern = None if owner is None else parse_name(owner)
    for source in sources():
        if pattern is None and source.is_named:
            continue
        for image in source.images():
            if pattern is None or (image.only_by in str(owner) and any(map(pattern.means, image.names))):
                yield image


def _functions_in(meant: Iterable[Image], wanted: str) -> Iterator[ImageFunction]:
    seen = set[int]()
    for image in meant:
        text = image.unversioned(wanted)
        pattern = parse_name(text)
        if pattern.kind is PatternKind.FULL and image.is_searched:
            chosen = list(image.named(pattern.search)) if pattern.search else []
        else:
            chosen = whole(wanted, image.chosen(partial(places, pattern), text))
        for function in sorted(map(image.meant, chosen), key=lambda each: (each.address, preference(each.name))):
            if function.address not in seen:
                seen.add(function.address)
                yield ImageFunction(image, function)


def whole(pattern: str, functions: Iterable[Symbol]) -> list[Symbol]:
    """Functions that `pattern` matches without their cold parts, which a glob means only if it says so: `*.cold`."""
    if "cold" in pattern or not set(pattern) & set("*?["):
        return list(functions)
    return [function for function in functions if not is_cold(function.name)]


def _shown(meant: list[Image], owner: str) -> str:
    names = list(dict.fromkeys(f"[{image.name}]" for image in meant))
    more = f" and {len(names) - 3} more" if len(names) > 4 else ""
    return ", ".join(names[: 3 if more else 4]) + more or "a loaded module (there is none)"
