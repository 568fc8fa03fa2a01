"""Sentences about calls of Numba functions that probes do not see, because LLVM has inlined them into their callers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from sandbox.images.numba.live import inlined

_TOLD = 5
"""Functions that a glob matches and that are named; the others are only counted."""
_SPECIAL = frozenset("*?[")


def is_glob(wanted: str) -> bool:
    """Whether a name is a pattern for several."""
    return bool(_SPECIAL & set(wanted))


def sentences(wanted: str, matches: Callable[[str], bool]) -> Iterator[str]:
    """For the functions that `wanted`, a name or glob, `matches` and whose calls are inlined."""
    callers = inlined()
    names = _matching(wanted, matches, callers) if is_glob(wanted) else [wanted] if wanted in callers else []
    yield from (_sentence(name, sorted(callers[name])) for name in names[:_TOLD])
    if len(names) > _TOLD:
        yield f"{len(names) - _TOLD:,} more functions of numba:{wanted} are inlined: fprobe.numba.inlined() has them"


def _matching(glob: str, matches: Callable[[str], bool], names: Iterable[str]) -> list[str]:
    """The names that match, without functions of Numba's own unless the glob begins as they do."""
    return sorted(
        name for name in names if matches(name) and (glob.startswith("numba") or not name.startswith("numba."))
    )


def _sentence(name: str, callers: list[str]) -> str:
    named = ", ".join(callers[:3]) + (f" and {len(callers) - 3} more" if len(callers) > 3 else "")
    return f"{name} is inlined into {named}: these calls are not seen; see fprobe.numba.install(noinline=True)"
