"""Parse a filter (predicates joined by &&, ||, ! and parentheses) to a program of tests with successors."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ftrace.tracing.events.filters.errors import FilterError, FilterErrorCode
from ftrace.tracing.events.filters.fields import EventField
from ftrace.tracing.events.filters.operands import FunctionRange, PredicateParser, function_range
from ftrace.tracing.events.filters.predicates import Predicate

SPACES = " \t\n\v\f\r"
"""The characters that separate words, as isspace() in the kernel."""


@dataclass(frozen=True)
class Step:
    """A test, and the index of the step after it for each result."""

    test: Predicate
    if_true: int
    if_false: int


@dataclass(frozen=True)
class Filter:
    """A parsed filter: its text, as the filter file shows it, and its steps.

    Successors are always later steps. The index after the last step accepts; the index after that rejects.
    """

    text: str
    steps: tuple[Step, ...]


def parse_filter(text: str, fields: Sequence[EventField], functions: FunctionRange = function_range) -> Filter:
    """Parse `text` for an event with these fields.

    Blanks at the end are not part of it. Raises FilterError (an OSError) with the kernel's message and position.
    """
    text = text.rstrip(SPACES)
    _check_pairs(text)
    return Filter(text, _Parser(text, PredicateParser(text, fields, functions)).steps())


def _check_pairs(text: str) -> None:
    """Raise FilterError for unbalanced quotes or parentheses, and for text with nothing else in it."""
    opened: list[int] = []
    is_empty = True
    for at, character in _outside_quotes(text):
        if character == "(":
            opened.append(at)
        elif character == ")":
            if not opened:
                raise FilterError(FilterErrorCode.TOO_MANY_CLOSE, at, errno.EPERM)
            opened.pop()
        else:
            is_empty = False
    if opened:
        raise FilterError(FilterErrorCode.TOO_MANY_OPEN, opened[-1], errno.ENOENT)
    if is_empty:
        raise FilterError(FilterErrorCode.ERRNO)


def _outside_quotes(text: str) -> Iterator[tuple[int, str]]:
    """The characters that are neither blank nor quoted, and the quotes themselves, with their offsets."""
    quote, opened = "", 0
    for at, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character not in SPACES:
            if character in "'\"":
                quote, opened = character, at
            yield at, character
    if quote:
        raise FilterError(FilterErrorCode.MISSING_QUOTE, opened, errno.ESRCH)


class _Exit(NamedTuple):
    """A result of a step whose successor is outside the step's fragment."""

    step: int
    result: bool


class _Fragment(NamedTuple):
    """A run of steps: the first step, and the exits for true and for false."""

    start: int
    trues: list[_Exit]
    falses: list[_Exit]

    def negated(self, really: bool) -> _Fragment:
        return _Fragment(self.start, self.falses, self.trues) if really else self


class _Parser:
    """An operator-precedence parser with explicit stacks, since filters may nest deeper than Python calls."""

    def __init__(self, text: str, predicates: PredicateParser) -> None:
        self._text = text
        self._predicates = predicates
        self._at = 0
        self._tests: list[Predicate] = []
        self._targets: dict[_Exit, int] = {}
        self._operands: list[_Fragment] = []
        self._operators: list[str] = []
        """Pending operators: `&&`, `||`, and open parentheses: `(`, or `!(` if negated."""

    def steps(self) -> tuple[Step, ...]:
        while self._operand():
            self._operator()
        if not self._operands:
            raise FilterError(FilterErrorCode.NO_FILTER, len(self._text))
        if any(operator.endswith("(") for operator in self._operators):  # a function's name has taken its partner
            raise FilterError(FilterErrorCode.TOO_MANY_OPEN, len(self._text) + 1, errno.EPERM)
        return self._finished()

    def _operand(self) -> bool:
        """Read a predicate with the `!` and `(` before it. Returns False if the text ends first."""
        negated = False
        while (character := self._next()) in ("(", "!"):
            if character == "(":
                self._operators.append("!(" if negated else "(")
                negated = False
            elif self._text[self._at + 1 : self._at + 2] in ("=", "~"):
                break
            else:
                negated = not negated
            self._at += 1
        if not character:
            return False
        test, self._at = self._predicates.parse(self._at)
        index = len(self._tests)
        self._tests.append(test)
        self._operands.append(_Fragment(index, [_Exit(index, True)], [_Exit(index, False)]).negated(negated))
        return True

    def _operator(self) -> None:
        """Read `)` and operators after an operand, up to the next operand."""
        while character := self._next():
            if character == ")":
                self._close()
                continue
            operator = self._text[self._at : self._at + 2]
            if operator not in ("&&", "||"):
                raise FilterError(FilterErrorCode.TOO_MANY_PREDS, self._at, errno.EPERM)
            self._reduce(operator)
            self._operators.append(operator)
            self._at += 2
            return

    def _close(self) -> None:
        self._reduce("||")
        self._at += 1
        if not self._operators:  # a function's name has taken its partner
            raise FilterError(FilterErrorCode.TOO_MANY_CLOSE, self._at, errno.EPERM)
        opened = self._operators.pop()
        self._operands.append(self._operands.pop().negated(opened == "!("))

    def _next(self) -> str:
        while self._text[self._at : self._at + 1].isspace() and self._text[self._at] in SPACES:
            self._at += 1
        return self._text[self._at : self._at + 1]

    def _reduce(self, operator: str) -> None:
        """Join the operands of operators that bind at least as tightly."""
        while self._operators and self._operators[-1] in ("&&", operator):
            is_and = self._operators.pop() == "&&"
            right, left = self._operands.pop(), self._operands.pop()
            for exit_ in left.trues if is_and else left.falses:
                self._targets[exit_] = right.start
            trues = right.trues if is_and else left.trues + right.trues
            falses = left.falses + right.falses if is_and else right.falses
            self._operands.append(_Fragment(left.start, trues, falses))

    def _finished(self) -> tuple[Step, ...]:
        if len(self._operators) == len(self._operands):
            self._operators.pop()  # the kernel ignores an operator at the end
        self._reduce("||")
        accept = len(self._tests)
        whole = self._operands.pop()
        self._targets.update(dict.fromkeys(whole.trues, accept))
        self._targets.update(dict.fromkeys(whole.falses, accept + 1))
        return tuple(
            Step(test, self._targets[_Exit(index, True)], self._targets[_Exit(index, False)])
            for index, test in enumerate(self._tests)
        )
