"""Generate an event's shortcut, which handles a hit without making a record, as native-language source.

A shortcut has the parameters of the event's handler. It returns 1 if it has handled and counted the hit, and 0 if it has
done nothing. It fetches only the arguments that a filter tests or a histogram counts. There are shortcuts for:

- an event that has a filter of numbers and no trigger: hits that the filter drops;
- an event that is not recorded and has only a histogram of numbers: hits of keys that the thread has counted before.

Calls that are timed if their values pass a filter are judged by such a function, too, which then may make a record.

The same source with an EarlyShape does so before a trampoline has saved anything, if all values are in registers that such a
function gets, or in memory. Early functions also record events without filter and trigger.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ftrace.tracing.events.filters import predicates
from ftrace.tracing.events.filters.parser import Filter, Step
from ftrace.tracing.events.filters.predicates import COMPARISONS, DynamicText, Number, NumberTest
from ftrace.tracing.events.hist import values as hist
from ftrace.tracing.events.hit.handler_source import (
    EarlyShape,
    InexpressibleError,
    Shape,
    definition,
    fetch_lines,
    passing_lines,
    record_lines,
)
from ftrace.tracing.probe_args.fetch import Register
from ftrace.tracing.probe_args.layout import COMMON_FIELDS, RecordLayout

NAME = "shortcut"
"""Of the function."""
_IP = Register("ip")
"""Fields whose value in a shortcut may differ from that in a handler."""
_PID = next((offset, size) for _, name, offset, size, _ in COMMON_FIELDS if name == "common_pid")


def record_source(layout: RecordLayout, shape: EarlyShape) -> str:
    """An early function that records all hits as they are. Raises InexpressibleError if it would need other registers."""
    unless = f" or {shape.unless}" if shape.unless else ""
    lines = [
        "target = state.targets[0]",
        f"task = {shape.task}",
        f"if is_judged_by_array(target){unless}:",
        "    return 0",
        "count_hit_of(state, cast(u64, task.index))",
        *record_lines(layout, shape),
        "return 1",
    ]
    return definition(NAME, shape.parameters, lines)


class NumberTable(NamedTuple):
    """The constants of a histogram of numbers: see NativeTable in ftrace.hit.events.table_records.

    `values`: what is added to each sum but the first. `is_plain`: whether count_number() counts other hits. `sums`: the first
    sum's offset in an entry. `entry`: bytes of an entry. `stride`: bytes from one thread's table to the next.
    """

    keys: tuple[hist.Value, ...]
    values: tuple[hist.Value, ...]
    is_plain: bool
    mask: int
    shift: int
    entry: int
    sums: int
    stride: int


def filter_source(layout: RecordLayout, shape: Shape, filter_: Filter) -> str:
    """The shortcut of an event with a filter. Raises InexpressibleError unless the filter tests only numbers."""
    values = _Values(layout, shape)
    tests = list(_tests(filter_.steps, values))
    lines = [f"state = cast(ptr[EventState], {shape.state})", *values.fetched(), *tests]
    lines += [f"if at == {len(filter_.steps)}:", "    return 0", "count_hit(state)", "return 1"]
    return definition(NAME, shape.parameters, lines)


def selection_source(
    layout: RecordLayout, shape: Shape, filter_: Filter | None, by: Number | DynamicText | None
) -> str:
    """What is asked of calls that are counted and timed (ftrace.hit.selected_calls): as in filter files, but no record is kept.

    `by`: what tells them apart. The filter of a source that does not make a record is in the source, else at `condition`.
    """
    if isinstance(by, DynamicText):
        numbered = passing_lines(layout, shape, is_filtered=filter_ is not None, text=by.offset)
        return definition(NAME, shape.parameters, [*numbered, "return 1 if is_met else 0"])
    values = _Values(layout, shape)
    origin = [f"by[0] = {values.word(by)}"] if by is not None else []
    try:
        tests = (
            [*_tests(filter_.steps, values), f"is_met = at == {len(filter_.steps)}"] if filter_ else ["is_met = True"]
        )
        lines = [*values.fetched(), *tests]
    except InexpressibleError:
        lines = list(passing_lines(layout, shape))
    return definition(NAME, shape.parameters, [*lines, *origin, "return 1 if is_met else 0"])


def hist_source(layout: RecordLayout, shape: Shape, table: NumberTable, condition: Filter | None) -> str:
    """The shortcut of an event with a histogram. Raises InexpressibleError unless its condition tests only numbers."""
    values = _Values(layout, shape)
    tests = [*_tests(condition.steps, values), f"is_met = at == {len(condition.steps)}"] if condition else []
    keys = [values.computed(key) for key in table.keys]
    added = [values.computed(value) for value in table.values]
    lines = [
        "if needs_record(cast(ptr[EventTarget], hist_target)):",
        "    return 0",
        f"state = cast(ptr[EventState], {shape.state})",
        *values.fetched(),
        *tests,
        "trigger = cast(ptr[NativeTrigger], hist_trigger)",
        f"if load(addressof(trigger.paused), 'relaxed') == 0{' and is_met' if condition else ''}:",
        *("    " + line for line in _counting(table, keys, added)),
        "count_hit(state)",
        "return 1",
    ]
    return definition(NAME, shape.parameters, lines)


def _counting(table: NumberTable, keys: Sequence[str], added: Sequence[str]) -> Iterator[str]:
    """Count in the entry of the keys; return 0 if the thread has no entry yet. As find_entry() in table_records."""
    yield from (f"k{index} = {key}" for index, key in enumerate(keys))
    yield from _mark(len(keys), table.is_plain)
    yield "index = cast(u64, current().index)"
    yield f"places = hist_base + index * {table.stride} + HEADER"
    yield f"place = (mark * GOLDEN) >> {table.shift}"
    yield f"entry = cast(ptr[u64], places + place * {table.entry})"
    yield "found = load(entry, 'relaxed')"
    other = "".join(f" or entry[KEY_AT + {index}] != k{index}" for index in range(len(keys)))
    yield f"while unlikely(found != mark{other}):"  # ends, since at least half of the places are free
    yield "    if found == 0:"
    yield "        return 0"
    yield f"    place = (place + 1) & {table.mask}"
    yield f"    entry = cast(ptr[u64], places + place * {table.entry})"
    yield "    found = load(entry, 'relaxed')"
    for index, value in enumerate(("1", *added)):
        yield f"single_add(addressof(entry[{table.sums // 8 + index}]), {value})"
    yield "count_hit_of(state, index)"
    yield "return 1"


def _mark(keys: int, is_plain: bool) -> Iterator[str]:
    """The mark of the keys, as count_number() and hash_of() compute it."""
    if is_plain:
        yield "mark = k0 << 1 | 1"
        return
    yield "mark: u64 = 0"
    for index in range(keys):
        yield f"if k{index} != 0:"
        yield f"    mark = mix(mark + {index}, k{index})"
    yield "mark |= 1"


class _Values:
    """The numbers of a record as expressions that do not need the record; their arguments are fetched first."""

    def __init__(self, layout: RecordLayout, shape: Shape) -> None:
        self._layout, self._shape = layout, shape
        self._wanted: set[int] = set()

    def fetched(self) -> Iterator[str]:
        """The lines that fetch the arguments of all expressions so far."""
        return fetch_lines(self._layout, self._shape, sorted(self._wanted))

    def of(self, number: Number, signed: bool | None = None) -> str:
        """An expression of the number's width. `signed`: instead of its own signedness."""
        letter = "i" if (number.signed if signed is None else signed) else "u"
        return f"cast({letter}{8 * number.size}, {self._raw(number)})"

    def word(self, number: Number) -> str:
        """The number, sign-extended or zero-extended to a u64."""
        return f"cast(u64, {self.of(number)})"

    def computed(self, value: hist.Value) -> str:
        """An expression of a number that a histogram computes. Raises InexpressibleError for what is no number of the record."""
        match value:
            case hist.FieldValue(where):
                return self.word(where)
            case hist.Constant(number):
                return f"cast(u64, {number})"
            case hist.Log2(operand):
                return f"logarithm({self.computed(operand)})"
            case hist.Bucket(operand, width):
                return f"({self.computed(operand)} // {width} * {width})"
            case hist.Negative(operand):
                return f"(0 - {self.computed(operand)})"
            case hist.Quotient(dividend, divisor):
                function = "rounded_up" if hist.is_rounded_up(divisor) else "ratio"
                return f"{function}({self.computed(dividend)}, {divisor})"
            case hist.Binary("/", left, right):
                return f"ratio({self.computed(left)}, {self.computed(right)})"
            case hist.Binary(op, left, right):
                return f"({self.computed(left)} {op} {self.computed(right)})"
        raise InexpressibleError

    def _raw(self, number: Number) -> str:
        """A u64 with the number in its low bytes."""
        place = number.offset, number.size
        if place == _PID:
            return "cast(u64, current().pid)"
        for field, value in zip(self._layout.addresses, self._shape.addresses, strict=True):
            if place == (field.offset, field.size):
                return value
        for index, field in enumerate(self._layout.arguments):
            argument = field.argument
            is_number = not (argument.count or argument.type.is_string or argument.fetch.source == _IP)
            if place == (field.offset, field.size) and is_number:
                self._wanted.add(index)
                return f"v{index}"
        raise InexpressibleError


def _tests(steps: Sequence[Step], values: _Values) -> Iterator[str]:
    """Lines that set `at` to the step after the last test: one past all steps if the record passes."""
    for index, step in enumerate(steps):
        if index == 0:
            yield f"at: u64 = {_successor(step, values)}"
        else:
            yield f"if at == {index}:"
            yield f"    at = {_successor(step, values)}"


def _successor(step: Step, values: _Values) -> str:
    test = step.test
    if isinstance(test, predicates.Constant):
        return str(step.if_true if test.value else step.if_false)
    if not isinstance(test, NumberTest):
        raise InexpressibleError
    number, op, value = test.number, test.op, test.value
    if op == "&":
        mask = value & (1 << 8 * number.size) - 1
        return f"{step.if_true} if {values.of(number, signed=False)} & {mask} != 0 else {step.if_false}"
    known = _known(test)
    if known is not None:
        return str(step.if_true if known else step.if_false)
    return f"{step.if_true} if {values.of(number)} {op} {value} else {step.if_false}"


def _known(test: NumberTest) -> bool | None:
    """The result of a comparison with a constant result, such as `>= 0`; else None."""
    low = -(1 << 8 * test.number.size - 1) if test.number.signed else 0
    high = low + (1 << 8 * test.number.size) - 1
    if test.op not in ("==", "!="):
        results = {COMPARISONS[test.op](number, test.value) for number in (low, high)}
        return results.pop() if len(results) == 1 else None
    return None
