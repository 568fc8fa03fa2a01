"""Names from everywhere in the process that are similar to one that was not found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from sandbox.images.image import Image
from sandbox.images.other_forms import advice, of_owner
from sandbox.images.process_text import JIT_NAMES
from sandbox.images.sources import images
from sandbox.process.near import did_you_mean
from sandbox.symbols.libraries import elsewhere
from sandbox.symbols.names import name_of_python, split_owner
from sandbox.symbols.readable import readable

_SUGGESTED = 3
"""Functions of that name in scopes of C++ or Rust, and those of which it is all before a space."""
_SIMILAR, _CLOSE = 0.6, 0.75
"""The least similarity, as difflib has it, of names of the images that are meant, and of others."""
ENOUGH = 5_000
"""How many names of one image, at most, are compared with one that is nowhere."""


def near_misses(wanted: str, meant: Iterable[Image] = (), *, of_pattern: bool = True) -> str:
    """Names similar to a pattern, in the form of patterns: `; did you mean libz:inflate?`, or ''.

    They are of the images in `meant` or, if none of these is similar, of others, which have to be more similar. `of_pattern`:
    globs are understood; else a name with spaces is suggested as its symbol.
    """
    meant = list(meant)
    is_of_compiler = any(image.name in JIT_NAMES for image in meant)  # whose functions are called as in Python
    if not is_of_compiler and (of_python := name_of_python(wanted)):
        bare = wanted.rpartition(".")[2]
        near = (
            found
            for each in _by_nearness(bare, meant)
            if (found := _suggested(bare, _shown(each, of_pattern=of_pattern)))
        )
        return f"; {of_python}{next(near, '')}"
    if of_another_form := advice(wanted):
        return f"; {of_another_form}"
    for image in meant:
        if image.no_names:
            return f"; {image.no_names}"
    bare = wanted.strip("*?!")
    for number, each in enumerate(_by_nearness(bare, meant)):
        shown = _shown(each, of_pattern=of_pattern)
        if not meant and shown.get(bare) == wanted:
            return f"; {wanted} was compiled without a stub, so only kprobes can probe it"
        if found := _suggested(bare, shown, _CLOSE if number else _SIMILAR):
            return found
    return ""


def _suggested(bare: str, shown: dict[str, str], least: float = _SIMILAR) -> str:
    names = {name.lower(): name for name in shown}
    for name in (bare, bare.partition("@")[0], names.get(bare.lower(), "")):  # a version of another, or the default one
        if name in shown:
            return f"; did you mean {shown[name]}?"
    longer = (form for name, form in shown.items() if name.endswith(f"::{bare}") or name.startswith(f"{bare} "))
    inside = list(islice(longer, _SUGGESTED))
    return f"; did you mean {' or '.join(inside)}?" if inside else did_you_mean(bare, shown, shown, least)


def _by_nearness(bare: str, meant: list[Image]) -> Iterator[list[tuple[Image, Iterator[str]]]]:
    """Images with names to suggest: first the named ones, then those of the program, and those that this package has brought."""
    yield [(image, iter(image.like(bare, ENOUGH))) for image in meant]
    others = [(image, image.suggestions()) for image in images()]
    yield [each for each in others if not each[0].is_own]
    yield [each for each in others if each[0].is_own]


def _shown(suggested: Iterable[tuple[Image, Iterator[str]]], *, of_pattern: bool) -> dict[str, str]:
    """Name -> the form in which a pattern, or the place of an event, has it: a word without spaces."""
    shown: dict[str, str] = {}
    for image, symbols in suggested:
        stem = "" if image.module else f"{_shortest(image)}:"
        for symbol in islice(symbols, ENOUGH):
            name = _written(symbol)
            as_glob = name.replace("[", "[[]").replace(" ", "?")  # every other glob matches itself
            shown.setdefault(name, stem + (as_glob if of_pattern else symbol if " " in name else name))
    return shown


def _written(symbol: str) -> str:
    """A name as a pattern without parentheses has it."""
    return readable(symbol).partition("() ")[0]


def _shortest(image: Image) -> str:
    """Its shortest name; of two, the one of the file: `libstdc++`, not `libstdc__`."""
    return min(image.names, key=lambda name: (len(name), name))


def no_symbol(name: str) -> str:
    """A sentence for a name that sandbox.images.process_text.symbol_named does not find, with what may have been meant."""
    owner, colon, bare = split_owner(name)
    if not colon:
        near = near_misses(name, of_pattern=False) or f"; one of a library is written library:{name}"
        return f"no symbol {name!r} in a loaded module{near}"
    meant = [image for image in images() if owner in image.names]
    if not meant:
        return no_image(owner, bare)
    return f"no symbol {bare!r} in [{meant[0].name}]{near_misses(bare, meant, of_pattern=False)}"


def no_image(owner: str, wanted: str) -> str:
    """A sentence for `owner:wanted`, of which no image called `owner` is there, with what may have been meant."""
    if owner in JIT_NAMES:
        return f"no function {wanted!r} in [{owner}]: nothing has been compiled yet{_elsewhere(wanted)}"
    if of_another_form := of_owner(owner, wanted):
        return f"no module, library or other image {owner!r} is loaded; {of_another_form}"
    near = (
        _with_colon(f"{owner}:{wanted}")
        or _elsewhere(wanted)
        or did_you_mean(owner, (name for image in images() for name in sorted(image.names)))
    )
    return f"no module, library or other image {owner!r} is loaded{near}{_of_dlmopen()}"


def _with_colon(text: str) -> str:
    """`; did you mean lib?colon.so:f?` for `lib:colon.so:f`, if there is an image whose name has a colon."""
    names = [name for image in images() for name in image.names if ":" in name and text.startswith(f"{name}:")]
    name = max(names, key=len, default="")
    return f"; did you mean {name.replace(':', '?')}{text[len(name) :]}?" if name else ""


def _of_dlmopen() -> str:
    number = elsewhere()
    return (
        f"; what dlmopen has loaded into other namespaces ({number} here) cannot be probed by name"
        if number > 0
        else ""
    )


def _elsewhere(name: str) -> str:
    """`; did you mean python:deflate?`: images with a function of exactly that name, such as one it is linked into."""
    if set(name) & set("*?["):  # searching the exported names of all libraries takes a tenth of a second
        return ""
    found = [f"{_shortest(image)}:{name}" for image in images() if not image.module and name in image.suggestions()]
    return f"; did you mean {' or '.join(found[:3])}?" if found else ""
