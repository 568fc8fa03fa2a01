"""The scenario language: text in, declarations, rules and steps out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

KINDS = ("fprobe", "kprobe", "kretprobe", "ops")
_SELECTION = re.compile(r"(\*)|(<=|>=)?(\d+)")


class ScriptError(ValueError):
    """A line that is not in the language; the message names it."""


@dataclass(frozen=True)
class Declaration:
    """`kind NAME OPTION...`; an option without a value has the value ''."""

    kind: str
    name: str
    options: dict[str, str]


@dataclass(frozen=True)
class Rule:
    """`on HANDLER SEL ACTION...`: what the invocations numbered `first` to `last` of a handler do."""

    handler: str
    first: int
    last: float
    action: tuple[str, ...]

    def selects(self, number: int) -> bool:
        """Whether it is for the invocation with this number."""
        return self.first <= number <= self.last


@dataclass(frozen=True)
class Step:
    """A call of the API, or of a target function with the steps that run in the middle of it."""

    words: tuple[str, ...]
    block: tuple[Step, ...] = ()

    def __str__(self) -> str:
        return " ".join(self.words)


@dataclass(frozen=True)
class Script:
    """A scenario. `expected` is the kernel's log, None if the text has none.

    `rules` stand in front of all steps; one that comes later is a step, and counts from there on.
    """

    declarations: tuple[Declaration, ...]
    rules: tuple[Rule, ...]
    steps: tuple[Step, ...]
    expected: tuple[str, ...] | None

    @property
    def kinds(self) -> frozenset[str]:
        """Which kinds of objects it declares."""
        return frozenset(declaration.kind for declaration in self.declarations)


def parse(text: str) -> Script:
    """Read a scenario. Raises ScriptError naming the line that is not in the language."""
    lines = text.splitlines()
    cut = lines.index("---") if "---" in lines else len(lines)
    declarations: list[Declaration] = []
    rules: list[Rule] = []
    others: list[tuple[str, ...]] = []
    for words in _worded(lines[:cut]):
        if words[0] in KINDS:
            declarations.append(_declaration(words))
        elif words[0] == "on" and not others:
            rules.append(rule(words))
        else:
            others.append(words)
    expected = tuple(lines[cut + 1 :]) if cut < len(lines) else None
    return Script(tuple(declarations), tuple(rules), _steps(iter(others), nested=False), expected)


def _worded(lines: list[str]) -> Iterator[tuple[str, ...]]:
    for line in lines:
        words = tuple(line.split())
        if words and not words[0].startswith("#"):
            yield words


def _declaration(words: tuple[str, ...]) -> Declaration:
    if len(words) < 2:
        raise ScriptError(f"{' '.join(words)!r} declares no name")
    options = dict(word.partition("=")[::2] for word in words[2:])
    return Declaration(words[0], words[1], options)


def rule(words: tuple[str, ...]) -> Rule:
    """Read `on NAME.HANDLER SEL ACTION...`. Raises ScriptError if it is not that."""
    match = _SELECTION.fullmatch(words[2]) if len(words) > 3 else None
    if match is None:
        raise ScriptError(f"{' '.join(words)!r} is not `on NAME.HANDLER SEL ACTION...`")
    number = int(match[3] or 0)
    first = number if match[2] != "<=" else 0
    last = float("inf") if match[1] or match[2] == ">=" else number
    return Rule(words[1], first, last, words[3:])


def _steps(lines: Iterator[tuple[str, ...]], nested: bool) -> tuple[Step, ...]:
    found: list[Step] = []
    for words in lines:
        if words == ("}",):
            if not nested:
                raise ScriptError("a `}` without a block")
            return tuple(found)
        opens = words[-1] == "{"
        found.append(Step(words[:-1], _steps(lines, nested=True)) if opens else Step(words))
    if nested:
        raise ScriptError("a block is not closed")
    return tuple(found)
