"""Parse one predicate of a filter, `FIELD OP VALUE`, as parse_pred() in kernel/trace/trace_events_filter.c.

A list of CPUs such as `0-3,8-15:2/4` is parsed as by bitmap_parselist() in the kernel's lib/bitmap-str.c.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import NoReturn

from ftrace.core import glob
from ftrace.core.glob import PatternKind
from ftrace.core.kstrtox import kstrtoll, kstrtoull
from ftrace.tracing.events.filters.errors import FilterError, FilterErrorCode
from ftrace.tracing.events.filters.fields import EventField, Kind, find_field, known_fields
from ftrace.tracing.events.filters.predicates import (
    BelowTest,
    CommText,
    Constant,
    CpuTest,
    DynamicText,
    FunctionTest,
    MaskTest,
    Number,
    NumberTest,
    Predicate,
    StaticText,
    Text,
    TextTest,
)
from sandbox.images.process_text import symbol_at, symbol_named

_REGION = re.compile(r"(?:(all)|([0-9]+|N)(?:-([0-9]+|N))?)(?::([0-9]+)/([0-9]+))?")
_POSSIBLE = Path("/sys/devices/system/cpu/possible")


@cache
def possible_cpus() -> int:
    """The highest possible CPU number of this machine, plus one."""
    try:
        return int(re.split("[-,]", _POSSIBLE.read_text().strip())[-1]) + 1
    except (OSError, ValueError):
        return os.cpu_count() or 1


def parse_cpulist(text: str, count: int) -> int:
    """The mask of the CPUs in a list. Numbers must be below `count`. Raises ValueError."""
    mask = 0
    for region in re.split(r"[,\s]+", text):
        if region:
            mask |= _region(region, count)
    return mask


def _region(text: str, count: int) -> int:
    match = _REGION.fullmatch(text)
    if match is None:
        raise ValueError(f"the range of CPUs is {text!r}; it must be CPU, CPU-CPU or CPU-CPU:USED/GROUP")
    everything, first, last, used, group = match.groups()
    low = 0 if everything else _cpu(first, count)
    high = count - 1 if everything else low if last is None else _cpu(last, count)
    taken, period = (int(used), int(group)) if used else (1, 1)
    if low > high or high >= count or not 0 <= taken <= period or period == 0:
        raise ValueError(f"the range is {text!r}; it must ascend, and CPUs must be between 0 and {count - 1}")
    return sum(1 << cpu for cpu in range(low, high + 1) if (cpu - low) % period < taken)


def _cpu(text: str, count: int) -> int:
    return count - 1 if text == "N" else int(text)


MAX_TEXT = 256
"""The maximum length of a pattern, with its final 0, in bytes (MAX_FILTER_STR_VAL)."""
_MAX_DIGITS = 24
_WIDTHS = (1, 2, 4, 8)
_ADDRESS = 8
"""Bytes of a field that may be an address."""
_NAME = re.compile(r"[A-Za-z0-9_]*")
_SPACE = re.compile(r"[ \t\n\v\f\r]*")
_OPERATOR = re.compile(r"==|!=|<=|<|>=|>|&|~")
_INTEGER = re.compile(r"-?[A-Za-z0-9]*")
_FUNCTION = re.compile(r"[^ \t\n\v\f\r]*")
"""As in the kernel, a name extends to the next blank: one before a parenthesis must be followed by a blank."""

FunctionRange = Callable[[str | int], "tuple[int, int] | None"]
"""Finds a function by name or by an address in it. Returns its start and end; None if there is none."""


def function_range(which: str | int) -> tuple[int, int] | None:
    """The range of a function of a module, a library (`libz:deflate`) or a JIT compiler."""
    try:
        symbol = symbol_named(which) if isinstance(which, str) else symbol_at(which)
    except (LookupError, OSError):  # no such name; a library's file that cannot be read
        return None
    return (symbol.address, symbol.end) if symbol else None


class PredicateParser:
    """Parses the predicates of one filter.

    `fields`: the event's fields. `base`: the offset of the text in the command that error_log shows, for a trigger's condition.
    """

    def __init__(self, text: str, fields: Sequence[EventField], functions: FunctionRange = function_range) -> None:
        self._text = text
        self._fields = fields
        self._functions = functions
        self._at = 0
        self._field: EventField
        self._kind: Kind
        self._op = ""

    def parse(self, start: int) -> tuple[Predicate, int]:
        """The predicate at `start`, and the offset after it. Raises FilterError."""
        self._at = start
        name = self._take(_NAME)
        if not name:
            raise FilterError(FilterErrorCode.ERRNO, 0, errno.EPERM)
        found = find_field(self._fields, name)
        if found is None:
            self._fail(FilterErrorCode.FIELD_NOT_FOUND, hint=known_fields(self._fields))
        self._field, self._kind = found
        self._skip(".ustring")
        is_function = self._skip(".function")
        self._take(_SPACE)
        self._op = self._take(_OPERATOR)
        if not self._op:
            self._fail(FilterErrorCode.INVALID_OP)
        self._take(_SPACE)
        return (self._function() if is_function else self._value()), self._at

    def _value(self) -> Predicate:
        rest = self._text[self._at : self._at + 4]
        if rest == "CPUS":
            return self._cpus()
        if rest[:1] in ("'", '"'):
            return self._quoted()
        if rest[:1] == "-" or (rest[:1].isascii() and rest[:1].isdigit()):
            return self._integer()
        return self._fail(FilterErrorCode.INVALID_VALUE)

    def _take(self, what: re.Pattern[str]) -> str:
        match = what.match(self._text, self._at)
        if match is None:
            return ""
        self._at = match.end()
        return match[0]

    def _skip(self, prefix: str) -> bool:
        found = self._text.startswith(prefix, self._at)
        self._at += len(prefix) if found else 0
        return found

    def _fail(self, code: FilterErrorCode, at: int | None = None, hint: str = "") -> NoReturn:
        """The kernel counts from one past the character."""
        raise FilterError(code, (self._at if at is None else at) + 1, hint=hint)

    # -- integers -------------------------------------------------------------------------------------------------

    def _integer(self) -> Predicate:
        start = self._at
        if self._kind.is_string:
            self._fail(FilterErrorCode.EXPECT_STRING)
        if self._op == "~":
            self._fail(FilterErrorCode.ILLEGAL_FIELD_OP)
        digits = self._take(_INTEGER)
        if len(digits) >= _MAX_DIGITS:
            self._fail(FilterErrorCode.OPERAND_TOO_LONG)
        try:
            value = kstrtoll(digits) if self._field.signed else kstrtoull(digits)
        except OSError:
            self._fail(FilterErrorCode.ILLEGAL_INTVAL, start)
        return self._comparison(value)

    def _comparison(self, value: int) -> Predicate:
        if self._kind is Kind.CPU:
            return Constant(False) if self._op == "&" else CpuTest(self._op, _NUMBER_OF_CPU.wrap(value))
        number = self._number()
        return NumberTest(number, self._op, number.wrap(value)) if number else Constant(False)

    def _number(self) -> Number | None:
        """The field as a number; None if its size is not that of a number, which matches nothing."""
        field = self._field
        return Number(field.offset, field.size, field.signed) if field.size in _WIDTHS else None

    # -- text -----------------------------------------------------------------------------------------------------

    def _quoted(self) -> Predicate:
        if self._op not in ("==", "!=", "~"):
            self._fail(FilterErrorCode.ILLEGAL_FIELD_OP)
        if not self._kind.is_string:
            name = self._field.name
            may_point = self._field.size == _ADDRESS and not self._field.signed
            hint = f"{name} is a number; the text that it points to is {name}:string" if may_point else ""
            self._fail(FilterErrorCode.EXPECT_DIGIT, hint=hint)
        start = self._at + 1
        # The quotes have been paired before, so there is an end.
        self._at = self._text.index(self._text[self._at], start)
        pattern = self._text[start : self._at].encode("utf-8", "surrogateescape")
        if len(pattern) >= MAX_TEXT:
            self._fail(FilterErrorCode.OPERAND_TOO_LONG)
        self._at += 1
        if self._op == "~":
            return self._glob(pattern)
        return TextTest(self._source(), PatternKind.FULL, pattern, negated=self._op == "!=")

    def _glob(self, pattern: bytes) -> Predicate:
        parsed = glob.parse(pattern.decode("latin-1"))
        if not parsed.text:
            return Constant(parsed.negated)
        kind = PatternKind.FULL if parsed.kind is PatternKind.INDEX else parsed.kind
        return TextTest(self._source(), kind, parsed.search.encode("latin-1"), parsed.negated)

    def _source(self) -> Text:
        if self._kind is Kind.COMM:
            return CommText()
        if self._kind is Kind.STATIC_STRING:
            return StaticText(self._field.offset, self._field.size)
        return DynamicText(self._field.offset)

    # -- functions ------------------------------------------------------------------------------------------------

    def _function(self) -> Predicate:
        if self._field.size != 8:
            self._fail(FilterErrorCode.ILLEGAL_FIELD_OP)
        if self._op not in ("==", "!="):
            self._fail(FilterErrorCode.INVALID_OP)
        found = self._functions(self._address_or_name())
        if found is None:
            self._fail(FilterErrorCode.NO_FUNCTION)
        address = Number(self._field.offset, 8, signed=False)
        return FunctionTest(address, *found, negated=self._op == "!=")

    def _address_or_name(self) -> str | int:
        first = self._text[self._at : self._at + 1]
        if not (first.isascii() and first.isdigit()):
            return self._take(_FUNCTION)
        digits = self._take(_INTEGER)
        if len(digits) >= _MAX_DIGITS:
            self._fail(FilterErrorCode.OPERAND_TOO_LONG)
        try:
            return kstrtoull(digits)
        except OSError:
            self._fail(FilterErrorCode.INVALID_VALUE)

    # -- lists of CPUs --------------------------------------------------------------------------------------------

    def _cpus(self) -> Predicate:
        if self._kind not in (Kind.CPU, Kind.NUMBER) or self._op not in ("==", "!=", "&"):
            self._fail(FilterErrorCode.ILLEGAL_FIELD_OP)
        self._at += len("CPUS")
        self._at += 1
        if self._text[self._at - 1 : self._at] != "{":
            self._fail(FilterErrorCode.MISSING_BRACE_OPEN)
        start, end = self._at, self._text.find("}", self._at)
        self._at = len(self._text) if end < 0 else end
        if end < 0:
            self._fail(FilterErrorCode.MISSING_BRACE_CLOSE)
        try:
            mask = parse_cpulist(self._text[start:end], possible_cpus())
        except ValueError:
            self._fail(FilterErrorCode.INVALID_CPULIST)
        if start == end:
            self._fail(FilterErrorCode.INVALID_CPULIST)
        self._at += 1
        return self._mask_test(mask)

    def _mask_test(self, mask: int) -> Predicate:
        """A mask with one CPU is compared as a number. A mask with several CPUs is not equal to any."""
        if mask.bit_count() == 1:
            self._op = "==" if self._op == "&" else self._op
            return self._comparison(mask.bit_length() - 1)
        number = None if self._kind is Kind.CPU else self._number()
        if self._op == "==" or (number is None and self._kind is Kind.NUMBER):
            return Constant(False)
        if self._op == "&":
            return MaskTest(number, mask)
        return Constant(True) if number is None else BelowTest(number, possible_cpus())


_NUMBER_OF_CPU = Number(0, 4, signed=True)
