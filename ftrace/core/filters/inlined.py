"""Calls of Numba functions that probes do not see, because LLVM has inlined them into their callers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ftrace.core.glob import parse
from sandbox.symbols.names import split_owner

_TOLD = 5
"""Functions that a glob matches and that are named; the others are only counted."""
_SPECIAL = frozenset("*?[")


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
    is_glob = bool(_SPECIAL & set(wanted))
    if owner != "numba" or (is_glob and not with_globs):
        return
    from sandbox.images.numba.live import inlined

    callers = inlined()
    names = _matching(wanted, callers) if is_glob else [wanted] if wanted in callers else []
    yield from (_sentence(name, sorted(callers[name])) for name in names[:_TOLD])
    if len(names) > _TOLD:
        yield f"{len(names) - _TOLD:,} more functions of numba:{wanted} are inlined: fprobe.numba.inlined() has them"


def _matching(glob: str, names: Iterable[str]) -> list[str]:
    """The names that match, without functions of Numba's own unless the glob begins as they do."""
    matches = parse(glob).matches
    return sorted(
        name for name in names if matches(name) and (glob.startswith("numba") or not name.startswith("numba."))
    )


def _sentence(name: str, callers: list[str]) -> str:
    named = ", ".join(callers[:3]) + (f" and {len(callers) - 3} more" if len(callers) > 3 else "")
    return f"{name} is inlined into {named}: these calls are not seen; see fprobe.numba.install(noinline=True)"
