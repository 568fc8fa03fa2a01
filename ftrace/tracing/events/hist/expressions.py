"""Parse keys, values and variables: fields with modifiers, references and arithmetic."""

from __future__ import annotations

import errno
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from ftrace.core.kstrtox import kstrtoull
from ftrace.tracing.events.filters.fields import EventField, Kind, find_field
from ftrace.tracing.events.filters.predicates import DynamicText, Number, StaticText
from ftrace.tracing.events.hist.actions import Action
from ftrace.tracing.events.hist.errors import HistErrorCode, HistErrors, silent
from ftrace.tracing.events.hist.values import (
    MASK,
    STACK_DEPTH,
    TEXT_SIZE,
    Binary,
    Bucket,
    Comm,
    Constant,
    Cpu,
    FieldUse,
    FieldValue,
    HistField,
    Log2,
    Negative,
    Quotient,
    Reference,
    Sort,
    Stack,
    StackValue,
    TextValue,
    Timestamp,
    Value,
    VariableIdentity,
    quotient,
)
from ftrace.tracing.events.triggers.interfaces import EventFile

_MAX_SUBEXPRESSIONS = 3
_PLAIN = ("hex", "sym", "symXoffset", "syscall", "stacktrace", "log2", "usecs")
_FORBIDDEN: Mapping[FieldUse, tuple[str, ...]] = {
    FieldUse.KEY: (),
    FieldUse.VALUE: ("graph", "percent", "buckets", "log2", "sym", "sym-offset", "syscall", "stacktrace"),
    FieldUse.VARIABLE: ("graph", "percent", "buckets", "log2"),
}
_WIDTHS = (1, 2, 4, 8)


class Variables(Protocol):
    """The interface of a definition's variables: its own, and those of other triggers."""

    def define(self, definitions: Sequence[tuple[str, str]], actions: Sequence[Action]) -> None:
        """Set the names and expressions of the trigger's own variables, and its actions."""

    def is_defined(self, name: str) -> bool:
        """Whether the trigger has already made a variable of that name, or another trigger of its event has one."""

    def defined(self, name: str, variable: HistField) -> None:
        """Add a variable that the trigger has made."""

    def local(self, group: str, event: str, name: str) -> str | None:
        """The expression of a variable of the trigger being defined; None if it is not such a variable."""

    def refer(self, key: object) -> bool:
        """Note that the trigger uses a variable. Returns False if it uses too many."""

    def find(self, group: str, event: str, name: str) -> HistField | None:
        """A reference to a variable of another trigger; None if there is none."""


class ExpressionParser:
    """Parses the expressions of one trigger."""

    def __init__(self, event: EventFile, variables: Variables, errors: HistErrors, time_unit: int) -> None:
        self._event = event
        self._variables = variables
        self._errors = errors
        self.uses_time = False
        self._time_unit = time_unit
        """Units of the trace clock in a unit of its times."""
        self._subexpressions = 0
        self._role = FieldUse.VALUE

    def parse(self, text: str, role: FieldUse) -> HistField:
        """The field that `text` describes. Raises OSError, mostly with an entry in error_log."""
        self._subexpressions, self._role = 0, role
        found = self._expression(text, outermost=True)
        if found.modifier in _FORBIDDEN[role]:
            raise self._errors.error(HistErrorCode.BAD_FIELD_MODIFIER, text)
        if role is FieldUse.VALUE and found.sort is Sort.STACKTRACE:
            raise self._errors.error(HistErrorCode.BAD_FIELD_MODIFIER, text)
        if role is FieldUse.VARIABLE and found.modifier == "execname":
            return replace(found, value=Comm(), sort=Sort.COMM, type="char[]", size=TEXT_SIZE)
        return found

    def atom(self, text: str) -> HistField:
        """A field or a variable, not an expression, for an action to save. Raises OSError."""
        self._role = FieldUse.VARIABLE
        return self._atom(text, outermost=True)

    # -- arithmetic -----------------------------------------------------------------------------------------------

    def _expression(self, text: str, outermost: bool = False) -> HistField:
        if self._subexpressions > _MAX_SUBEXPRESSIONS:
            raise self._errors.error(HistErrorCode.TOO_MANY_SUBEXPR, text)
        at = _root_operator(text)
        if at is None:
            return self._atom(text, outermost)
        self._subexpressions += 1
        if at == 0 and text[0] == "-":
            return self._negative(text)
        left, right = text[:at], text[at + 1 :]
        if not left or not right:
            raise silent(f"the expression is {text!r}; each operator must have two operands")
        return self._combined(text[at], self._operand(left), self._operand(right), right)

    def _operand(self, text: str) -> HistField:
        found = self._expression(text)
        if found.is_text:
            raise self._errors.error(HistErrorCode.INVALID_STR_OPERAND, text)
        return found

    def _combined(self, op: str, left: HistField, right: HistField, right_text: str) -> HistField:
        if left.timestamp_unit != right.timestamp_unit:
            raise self._errors.error(HistErrorCode.TIMESTAMP_MISMATCH)
        if op == "/" and right.constant == 0:
            raise self._errors.error(HistErrorCode.DIVISION_BY_ZERO, right_text, errno.EDOM)
        refers = (*left.refers, *right.refers)
        if left.constant is not None and right.constant is not None:
            return replace(_constant(_folded(op, left.constant, right.constant)), refers=refers)
        value = _arithmetic(op, left.value, right.value, right.constant)
        name = f"{left.operand()}{op}{right.operand()}"
        return replace(
            left, name=name, value=value, sort=Sort.EXPRESSION, modifier="", buckets=0, field=None, refers=refers,
            constant=None,
        )  # fmt: skip

    def _negative(self, text: str) -> HistField:
        """Parse a negation, which must be `-(EXPRESSION)`."""
        if self._subexpressions > _MAX_SUBEXPRESSIONS:
            raise self._errors.error(HistErrorCode.TOO_MANY_SUBEXPR, text)
        inner = text[1:]
        if "(" not in inner or ")" not in inner:
            raise silent(f"the negation is {text!r}; it must be -(EXPRESSION)")
        inner, _, rest = inner[1:].rpartition(")")
        if rest:
            raise self._errors.error(HistErrorCode.UNARY_MINUS_SUBEXPR, text[2:])
        found = self._operand(inner)
        name = f"-({found.operand()})"
        return replace(
            found, name=name, value=Negative(found.value), sort=Sort.EXPRESSION, modifier="", field=None, constant=None
        )

    # -- operands -------------------------------------------------------------------------------------------------

    def _atom(self, text: str, outermost: bool) -> HistField:
        if text[:1].isascii() and text[:1].isdigit():
            try:
                return _constant(kstrtoull(text))
            except OSError:
                raise self._errors.error(HistErrorCode.EXPECT_NUMBER, text) from None
        group, event, name = _qualified(text)
        if name.startswith("$") and len(name) > 1:
            local = self._variables.local(group, event, name[1:])
            if local is None:
                found = self._variables.find(group, event, name[1:])
                if found is not None and self._variables.refer(*found.refers):
                    is_alias = outermost and self._role is FieldUse.VARIABLE
                    return replace(found, sort=Sort.ALIAS, constant=None) if is_alias else found
                self._errors.error(HistErrorCode.VAR_NOT_FOUND, name[1:])
            name = local or name
        return self._field(name, nested=not outermost)

    def _field(self, text: str, nested: bool) -> HistField:
        name, dot, modifier = text.partition(".")
        plain, buckets = self._modifier(name, modifier, nested) if dot else ("", 0)
        made = self._named(name, bool(dot))
        if made.sort is Sort.STACKTRACE:
            return replace(made, modifier="" if plain == "stacktrace" else plain)
        if plain == "stacktrace":
            return self._recorded_stack(made.field, modifier)
        if made.sort is Sort.HITCOUNT and plain in ("log2", "buckets"):
            # The number of one hit as it is, and a field without a name: create_hist_field() makes no operand for it.
            return replace(made, name="", modifier=plain, buckets=buckets)
        unit = "usecs" if plain == "usecs" else made.timestamp_unit
        value = _modified(made.value, plain, buckets)
        return replace(made, value=value, modifier=plain, buckets=buckets, timestamp_unit=unit)

    def _modifier(self, name: str, text: str, nested: bool) -> tuple[str, int]:
        """A modifier as listed, and the width of buckets."""
        if text in _PLAIN or (text == "execname" and name == "common_pid"):
            return text.replace("X", "-"), 0
        if text.startswith("bucket"):
            return "buckets", self._buckets(text[len("bucket") :])
        is_value = nested or self._role is FieldUse.VALUE
        for known in ("percent", "graph"):
            if text.startswith(known) and is_value:
                return known, 0
        raise self._errors.error(HistErrorCode.BAD_FIELD_MODIFIER, text)

    def _buckets(self, rest: str) -> int:
        rest = rest.removeprefix("s")
        if not rest.startswith("="):
            raise self._errors.error(HistErrorCode.BAD_FIELD_MODIFIER, rest)
        try:
            width = kstrtoull(rest[1:])
        except OSError:
            width = 0
        if not width:
            raise self._errors.error(HistErrorCode.BAD_FIELD_MODIFIER, rest[1:])
        return width

    def _named(self, name: str, is_modified: bool) -> HistField:
        if name == "common_timestamp":
            self.uses_time = True
            return HistField(name, Timestamp(self._time_unit), Sort.TIMESTAMP)
        if name == "common_stacktrace":
            return _STACK
        if name == "common_cpu":
            return _CPU
        if name == "hitcount":
            return HITCOUNT
        found = find_field(self._event.fields, name)
        if found is not None and found[1] is Kind.CPU:
            return replace(_CPU, name=name, field=found[0])
        if found is not None and found[1] is Kind.STACKTRACE:
            return self._stack(found[0], is_modified)
        if found is None or not found[0].size:
            raise self._errors.error(HistErrorCode.FIELD_NOT_FOUND, name)
        return _of_record(*found)

    def _recorded_stack(self, field: EventField | None, modifier: str) -> HistField:
        """A stack in the record, of a synthetic event. As in the kernel, a variable gets the stack of the hit instead."""
        if field is None or "long[" not in field.type:
            raise self._errors.error(HistErrorCode.BAD_FIELD_MODIFIER, modifier)
        if self._role is FieldUse.VARIABLE:
            return replace(_STACK, name=field.name)
        return replace(_STACK, name=field.name, value=StackValue(field.offset), field=field)

    def _stack(self, field: EventField, is_modified: bool) -> HistField:
        """The stack by its older names. As a key, only a bare `stacktrace` stands for common_stacktrace."""
        if self._role is FieldUse.VARIABLE:
            return replace(_STACK, name=field.name)
        return replace(_STACK, name=field.name, field=field) if is_modified or field.name != "stacktrace" else _STACK


_STACK = HistField("common_stacktrace", Stack(), Sort.STACKTRACE, type="long[]", size=8 * STACK_DEPTH)
_CPU = HistField("common_cpu", Cpu(), Sort.CPU, type="unsigned int", size=4)
HITCOUNT = HistField("hitcount", Constant(1), Sort.HITCOUNT)


def _of_record(field: EventField, kind: Kind) -> HistField:
    if kind is Kind.STATIC_STRING:
        text: StaticText | DynamicText = StaticText(field.offset, field.size)
        return HistField(field.name, TextValue(text), Sort.TEXT, field.type, field.size, field=field)
    if kind is Kind.DYNAMIC_STRING:
        text = DynamicText(field.offset)
        return HistField(field.name, TextValue(text), Sort.TEXT, field.type, TEXT_SIZE, field=field)
    if field.size not in _WIDTHS:
        raise silent(f"{field.name} has {field.size} bytes; a number must have 1, 2, 4 or 8", errno.ENOMEM)
    value = FieldValue(Number(field.offset, field.size, field.signed))
    return HistField(field.name, value, Sort.NUMBER, field.type, field.size, field.signed, field=field)


def _modified(value: Value, modifier: str, buckets: int) -> Value:
    if modifier == "log2":
        return Log2(value)
    return Bucket(value, buckets) if buckets else value


def _constant(value: int) -> HistField:
    return HistField(str(value), Constant(value), Sort.CONSTANT, constant=value)


def _arithmetic(op: str, left: Value, right: Value, divisor: int | None) -> Value:
    """`divisor`: the right operand where it is a constant."""
    return Binary(op, left, right) if op != "/" or divisor is None else Quotient(left, divisor)


def _folded(op: str, left: int, right: int) -> int:
    """The result of arithmetic on two constants."""
    if op == "/":
        return quotient(left, right)
    return _OPERATIONS[op](left, right) & MASK


_OPERATIONS: Mapping[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def _qualified(text: str) -> tuple[str, str, str]:
    """Split `group.event.name`; without two dots, the whole text is the name."""
    parts = text.split(".", 2)
    return (parts[0], parts[1], parts[2]) if len(parts) == 3 else ("", "", text)


def _root_operator(text: str) -> int | None:
    """The offset of the operator that is applied last: the rightmost of lowest precedence. None if there is none."""
    if text.rfind("-") == 0:
        return 0
    for operators in ("+-", "*/"):
        at = max(text.rfind(operator) for operator in operators)
        if at >= 0:
            return at
    return None


def reference(name: str, key: VariableIdentity, variable: HistField) -> HistField:
    """A reference to a variable of another trigger. `key`: identifies the variable at a hit."""
    return replace(
        variable, name=name, value=Reference(key), sort=Sort.REFERENCE, variable=None, modifier="", buckets=0, refers=(key,),
        field=None,
    )  # fmt: skip
