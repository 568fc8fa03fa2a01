"""Prototypes of functions in images of every kind."""

from __future__ import annotations

from sandbox.images import btf
from sandbox.images.btf import Prototype
from sandbox.images.process_text import library_called, symbol_named
from sandbox.symbols.library_dwarf import definition_of


def prototype(function: str) -> Prototype | None:
    """The prototype of `function` (`name`, `module:name`, `library:name`, `numba:module.name`).

    None if there is no such function, or its source does not name the parameters.
    """
    owner, colon, name = function.partition(":")
    if owner != "numba":
        return btf.prototype(function) or (_of_library(owner, function) if colon else None)
    from sandbox.images.numba import description

    return description.prototype(name)


def _of_library(owner: str, function: str) -> Prototype | None:
    library = library_called(owner)
    if library is None:
        return None
    try:
        symbol = symbol_named(function)
    except LookupError:
        return None
    die = definition_of(library, symbol)
    return btf.of_definition(die) if die is not None else None
