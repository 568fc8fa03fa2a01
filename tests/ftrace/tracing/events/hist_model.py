"""Histograms with variables and actions as plain Python, to be compared with those that hits update."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field

import filter_model

from ftrace.tracing.events.filters.predicates import StaticText
from ftrace.tracing.events.hist import values
from ftrace.tracing.events.hist.actions import ONMATCH, ONMAX, SAVE, TRACE
from ftrace.tracing.events.hist.shared_table import SharedHistogram

MASK = (1 << 64) - 1
_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": lambda a, b: a // b if b else MASK}


def _number(value, record, read):
    found = _value(value, record, read)
    return found if isinstance(found, int) else 0


def _value(value, record, read):
    """A value of a record. `read`: the value of a variable of another histogram."""
    match value:
        case values.FieldValue(where):
            return filter_model.number(where, record) & MASK
        case values.TextValue(where):
            size = -(-where.size // 8) * 8 if isinstance(where, StaticText) else 256
            return (filter_model.text(where, record, filter_model.Context()) or b"")[: size - 1]
        case values.Constant(number):
            return number
        case values.Reference(key):
            return read[key]
        case values.Log2(operand):
            return max(_number(operand, record, read) - 1, 0).bit_length() % 64
        case values.Bucket(operand, width):
            return _number(operand, record, read) // width * width
        case values.Negative(operand):
            return -_number(operand, record, read) & MASK
        case values.Binary(op, left, right):
            return _OPERATIONS[op](_number(left, record, read), _number(right, record, read)) & MASK
        case values.Quotient(dividend, divisor):
            number = _number(dividend, record, read)
            if divisor & (divisor - 1) and divisor <= 1 << 20 and number < 1 << 20:
                return -(-number * ((1 << 20) // divisor) // (1 << 20))
            return number // divisor
    raise NotImplementedError(value)


@dataclass
class _Entry:
    sums: list
    variables: dict = field(default_factory=dict)
    tracked: dict = field(default_factory=dict)
    saved: list = field(default_factory=list)


class HistModel:
    """One histogram. `models`: those of all tables; `generated`: a list of the events that its actions generate."""

    def __init__(self, trigger, models, generated):
        self._definition, self._table = trigger.definition, trigger.table
        self._models, self._generated = models, generated
        models[trigger.table] = self
        self.entries = {}

    def count(self, record):
        definition = self._definition
        key = tuple(_value(each.value, record, {}) for each in definition.keys)
        read = {}
        shared = isinstance(self._table, SharedHistogram)
        for wanted, is_used_up in self._table.refers.items() if shared else ():
            other = self._models[wanted.table].entries.get(key)
            if other is None or wanted.name not in other.variables:
                return
            take = other.variables.pop if is_used_up else other.variables.get
            read[wanted] = take(wanted.name)
        entry = self.entries.setdefault(key, _Entry([0] * (1 + len(definition.values))))
        for index, value in enumerate((1, *(_number(each.value, record, read) for each in definition.values))):
            entry.sums[index] = (entry.sums[index] + value) & MASK
        for variable in definition.variables:
            entry.variables[variable.variable] = _value(variable.value, record, read)
        for index, resolved in enumerate(self._table.actions if shared else ()):
            self._act(index, resolved, entry, record, read)

    def _act(self, index, resolved, entry, record, read):
        if resolved.action.handler != ONMATCH:
            value, before = entry.variables[resolved.tracks], entry.tracked.setdefault(index, 0)
            if not (value > before if resolved.action.handler == ONMAX else value != before):
                return
            entry.tracked[index] = value
        found = [
            entry.variables[each.variable] if each.value is None else _value(each.value, record, read)
            for each in resolved.parameters
        ]
        if resolved.action.kind is SAVE:
            entry.saved = [(each.name, value) for each, value in zip(resolved.parameters, found, strict=True)]
        elif resolved.action.kind is TRACE:
            self._generated.append((resolved.action.synthetic, *found))

    def shown(self):
        """By key: sums, what actions track, and what they have saved."""
        return {
            key: (tuple(entry.sums), dict(entry.tracked), entry.saved) for key, entry in self.entries.items()
        }  # fmt: skip
