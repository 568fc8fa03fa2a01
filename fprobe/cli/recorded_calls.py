"""Calls as probe events, for `fprobe record --trace`: one at the entry and one at the return of each function."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fprobe.cli.failure import Failure
from fprobe.cli.matching import match_or_fail

if TYPE_CHECKING:
    from sandbox.images.btf import BtfType
    from sandbox.loading.module import Module
    from sandbox.symbols.table import Symbol

GROUP = "calls"
"""The group of the events."""
_MOST = 1000
"""Functions whose calls are recorded: each takes two events, which are compiled."""
_LONGEST = 40
"""Characters of a function's name in those of its events."""


def definitions_of_calls(module: Module, patterns: Sequence[str], notrace: Sequence[str]) -> list[str]:
    """The definitions for the functions that match. Arguments whose place and type are known are recorded, texts as texts.

    Raises Failure if nothing matches, or too many functions.
    """
    if not patterns:
        return []
    sites = match_or_fail(module, patterns, (), notrace).sites
    if len(sites) > _MOST:
        raise Failure(f"--trace matches {len(sites):,} functions; at most {_MOST:,} can be recorded: give fewer")
    return [text for number, site in enumerate(sites) for text in _definitions(site.symbol, number)]


def _definitions(function: Symbol, number: int) -> Iterator[str]:
    from sandbox.images.prototypes import prototype

    place = f"{function.module}:{function.name}"
    known = prototype(place)
    name = re.sub(r"\W", "_", function.name)
    name = name if len(name) <= _LONGEST else f"{name[:_LONGEST]}_{number}"
    arguments = [_argument(*each) for each in known.parameters] if known is not None else []
    yield " ".join([f"f:{GROUP}/{name}__entry", place, *filter(None, arguments)])
    result = _argument("$retval", known.returns) if known is not None else ""
    yield " ".join([f"f:{GROUP}/{name}__exit", f"{place}%return", *[f"result={result}"] * bool(result)])


def _argument(name: str, kind: BtfType) -> str:
    """The word that records a parameter; '' for one that no word can: a floating-point number, a struct."""
    from ftrace.tracing.probe_args.scope import Typed
    from sandbox.images.btf import Enum, Int, Pointer

    if isinstance(kind, Pointer):
        return f"{name}:string" if Typed(kind).leads_to_text else name
    return name if isinstance(kind, (Int, Enum)) else ""
