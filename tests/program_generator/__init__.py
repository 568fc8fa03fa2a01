"""Seeded generators of programs, for differential tests and for scale.

`generate` writes programs with every feature that a probe may meet; `generate_flat` very many small functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .draft import CALL_COUNTS, Draft
from .features import DEFINITIONS, Feature, chosen
from .flat import FlatProgram, generate_flat
from .kinds import driver, plain, recursive, tail_chain, variadic

__all__ = ["CALL_COUNTS", "Feature", "FlatProgram", "Program", "generate", "generate_flat"]

_DRIVEN = 16
"""Functions per driver."""

_ATTRIBUTES = """
attributes #0 = { noinline nounwind uwtable "no-builtins" }
attributes #1 = { noinline nounwind uwtable "no-builtins" "notrace" }
"""

_MAIN = """
; n rounds over all functions; the checksum.
define i64 @main(i64 %n) #0 {{
entry:
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %i.next, %body ]
  %s0 = phi i64 [ {seed}, %entry ], [ %s{last}, %body ]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %body, label %done
body:
{calls}
  %i.next = add i64 %i, 1
  br label %head
done:
  ret i64 %s0
}}
"""


@dataclass(frozen=True)
class Program:
    """A generated program.

    `entry` is i64 (i64): that many rounds, each calling every function; the result depends on nothing else. Every
    function but `entry` counts its calls: element k of the i64 array `call_counts` (a data symbol, atomically updated,
    never reset) is the number of calls of `functions[k]`, whether or not it is one of `untraced`, which are notrace.
    Any number of threads may call it at once.
    """

    ir: str
    entry: str
    functions: tuple[str, ...]
    untraced: frozenset[str]


def generate(seed: int, functions: int = 40, features: Iterable[Feature | str] | None = None) -> Program:
    """A program of about that many functions with the given features (all of them: None).

    The same arguments give the same program. It terminates, quickly, and has no undefined behaviour, so that its result
    does not depend on how it is optimised. Raises ValueError for a feature that does not exist, or no functions.
    """
    if functions < 1:
        raise ValueError(f"a program needs at least one function, not {functions}")
    draft = Draft(seed, chosen(features))
    _populate(draft, functions)
    groups = [draft.functions[i : i + _DRIVEN] for i in range(0, len(draft.functions), _DRIVEN)]
    drivers = [driver(draft, group) for group in groups]
    parts = [f"; seed {seed}", DEFINITIONS, draft.text(), _main(seed, drivers), _ATTRIBUTES]
    return Program("\n".join(parts), "main", tuple(draft.names), frozenset(draft.untraced))


def _populate(draft: Draft, functions: int) -> None:
    special = [
        kind
        for feature, kind in (
            (Feature.RECURSION, recursive),
            (Feature.TAIL_CALLS, tail_chain),
            (Feature.VARARGS, variadic),
        )
        if feature in draft.features
    ]
    while len(draft.functions) < functions:
        kind = draft.random.choice(special) if special and draft.random.random() < 0.3 else plain
        kind(draft)


def _main(seed: int, drivers: list[str]) -> str:
    calls = "\n".join(f"  %s{i} = call i64 @{name}(i64 %s{i - 1})" for i, name in enumerate(drivers, 1))
    return _MAIN.format(seed=seed % 2**63, last=len(drivers), calls=calls)
