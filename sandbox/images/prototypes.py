"""Prototypes of functions in images of every kind."""

from __future__ import annotations

from sandbox.abi import btf
from sandbox.abi.btf import Prototype


def prototype(function: str) -> Prototype | None:
    """The prototype of `function` (`name`, `module:name`, `numba:module.name`).

    None if there is no such function, or its source does not name the parameters.
    """
    owner, _, name = function.partition(":")
    if owner != "numba":
        return btf.prototype(function)
    from sandbox.numba import description

    return description.prototype(name)
