"""Filters evaluated in Python: the second opinion on those that are compiled."""

from __future__ import annotations

from dataclasses import dataclass

from ftrace.core.glob import Pattern
from ftrace.tracing.events.filters import predicates as tests
from ftrace.tracing.events.filters.predicates import COMM_SIZE, COMPARISONS


@dataclass(frozen=True)
class Context:
    """The state that tests use besides the record: the task that produced it, and its CPU."""

    comm: bytes = b""
    cpu: int = 0


def passes(filter_, record: bytes, context: Context | None = None) -> bool:
    """Whether a record, with its fixed part complete, passes a filter."""
    at = 0
    while at < len(filter_.steps):
        step = filter_.steps[at]
        at = step.if_true if _holds(step.test, record, context or Context()) else step.if_false
    return at == len(filter_.steps)


def number(where: tests.Number, record: bytes) -> int:
    """A number of a record."""
    return int.from_bytes(record[where.offset : where.offset + where.size], "little", signed=where.signed)


def text(where: tests.Text, record: bytes, context: Context) -> bytes | None:
    """A text up to its first 0; None if it could not be read when the record was made."""
    match where:
        case tests.StaticText(offset, size):
            whole = record[offset : offset + size if size else len(record)]
        case tests.DynamicText(offset):
            start, size = (int.from_bytes(record[at : at + 2], "little") for at in (offset, offset + 2))
            whole = record[start : start + size]
        case _:
            return context.comm[: COMM_SIZE - 1].partition(b"\0")[0]
    return whole.partition(b"\0")[0] if whole else None


def _holds(test: tests.Predicate, record: bytes, context: Context) -> bool:
    match test:
        case tests.Constant(value):
            return value
        case tests.NumberTest(where, op, value):
            found = number(where, record)
            return bool(found & value) if op == "&" else COMPARISONS[op](found, value)
        case tests.CpuTest(op, value):
            return COMPARISONS[op](context.cpu, value)
        case tests.MaskTest(where, mask):
            cpu = context.cpu if where is None else number(where, record)
            return cpu >= 0 and bool(mask >> min(cpu, mask.bit_length()) & 1)
        case tests.BelowTest(where, limit):
            return 0 <= number(where, record) < limit
        case tests.FunctionTest(where, start, end, negated):
            return (start <= number(where, record) < end) != negated
        case tests.TextTest(where, kind, search, negated):
            found = text(where, record, context)
            return (found is not None and _matches(kind, search, found)) != negated
    raise NotImplementedError(test)


def _matches(kind, search: bytes, found: bytes) -> bool:
    wanted = search.decode("latin-1")
    # A Pattern without text matches nothing, but `== ""` is a comparison with the empty text.
    return Pattern(wanted or "*", kind, wanted, negated=False).matches(found.decode("latin-1"))
