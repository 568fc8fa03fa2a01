"""Prototypes of functions in images of every kind."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from sandbox.abi.signatures import Signature
from sandbox.images import btf
from sandbox.images.btf import Prototype
from sandbox.images.process_text import library_of, symbol_named
from sandbox.symbols.dwarf import signature_of
from sandbox.symbols.library_dwarf import definition_of
from sandbox.symbols.names import split_owner
from sandbox.symbols.table import Symbol

Made = TypeVar("Made")


def prototype(function: str) -> Prototype | None:
    """The prototype of `function` (`name`, `module:name`, `library:name`, `numba:module.name`).

    None if there is no such function, or its source does not name the parameters.
    """
    owner, colon, name = split_owner(function)
    if owner != "numba":
        return btf.prototype(function) or (_of_library(function) if colon else None)
    from sandbox.images.numba import description

    return description.prototype(name)


def signature_in_library(function: Symbol) -> Signature | None:
    """The signature of a library's function; None if there is no debug information about it, or none that can be read."""
    library = library_of(function.address)
    die = definition_of(library, function) if library is not None else None
    return _read(partial(signature_of, function.name, die)) if die is not None else None


def _of_library(function: str) -> Prototype | None:
    try:
        symbol = symbol_named(function)
    except LookupError:
        return None
    library = library_of(symbol.address)
    die = definition_of(library, symbol) if library is not None else None
    return _read(partial(btf.of_definition, die)) if die is not None else None


def _read(make: Callable[[], Made]) -> Made | None:
    """What is made of debug information; None if that is damaged."""
    try:
        return make()
    except Exception:  # reading damaged debug information raises anything
        return None
