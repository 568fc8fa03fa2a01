"""What function_graph's records are shown as, whatever they are: drawn from generated calls, and from any order of records."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrace.ring_buffer.reader import Record
from ftrace.tracing.instances.options import TraceOptions
from ftrace.tracing.output.graph import GraphFormat
from ftrace.tracing.output.lines import LineFormat
from ftrace.tracing.tracers.available import function_graph

ENTRY, EXIT, OTHER = 11, 10, 77


@dataclass
class Call:
    func: int
    inside: list[Call] = field(default_factory=list)


calls = st.recursive(
    st.builds(Call, st.integers(1, 5)),
    lambda inner: st.builds(Call, st.integers(1, 5), st.lists(inner, max_size=4)),
    max_leaves=20,
)


class Tgids:
    is_saving = False

    def see(self, _records):
        pass


def shown(records: list[Record], **changed: bool) -> list[str]:
    options = TraceOptions(lambda _name, _on: None, lambda: function_graph)
    before = {name: function_graph.flags[name] for name in function_graph.flags}
    for name, on in changed.items():
        options.set(name.replace("_", "-"), on)
    try:
        plain = LineFormat(options, True, Tgids())
        plain.comm = lambda _tid: "task"
        return list(GraphFormat(options, plain, {}, 4).lines(records))
    finally:
        for name, on in before.items():
            function_graph.flags.set(name, on)


def record(kind: int, slot: int, tid: int, body: bytes) -> Record:
    return Record(1, slot, 0, struct.pack("<II", kind, tid) + body)


def records_of(call: Call, depth: int, slot: int) -> list[Record]:
    inside = [each for inner in call.inside for each in records_of(inner, depth + 1, slot)]
    body = struct.pack("<QQiIQQ", call.func, 0, depth, 0, 5, 9)
    return [
        record(ENTRY, slot, slot + 1, struct.pack("<Qi", call.func, depth)),
        *inside,
        record(EXIT, slot, slot + 1, body),
    ]


def drawn(call: Call, depth: int) -> list[str]:
    name, indent = f"0x{call.func:08x}", "  " * depth
    if not call.inside:
        return [f"{indent}{name}();"]
    return [f"{indent}{name}() {{", *(line for inner in call.inside for line in drawn(inner, depth + 1)), f"{indent}}}"]


@given(calls)
@settings(max_examples=50, deadline=None)
def test_te9_2_calls_are_drawn_as_they_are_nested(call):
    lines = [line.partition("|  ")[2].rstrip("\n") for line in shown(records_of(call, 0, 0))]
    assert lines == drawn(call, 0)


@pytest.mark.stress
@given(calls, calls, st.randoms())
@settings(max_examples=50, deadline=None)
def test_calls_of_two_slots_are_told_apart(one, other, random):
    left, right = records_of(one, 0, 0), records_of(other, 0, 1)
    merged = []
    while left or right:
        merged.append((left or right).pop(0) if random.random() < 0.5 else (right or left).pop(0))
    lines = shown(merged)
    for slot, call in enumerate((one, other)):
        mine = [line.partition("|  ")[2].rstrip("\n") for line in lines if line.startswith(f" {slot}) ")]
        assert mine == drawn(call, 0)


kinds = st.sampled_from([(ENTRY, "<Qi"), (EXIT, "<QQiIQQ"), (OTHER, "<Q")])
flags = st.dictionaries(
    st.sampled_from([*function_graph.flags, "context-info"]).map(lambda name: name.replace("-", "_")), st.booleans()
)


@st.composite
def any_record(draw):
    kind, form = draw(kinds)
    numbers = {"Q": st.integers(0, 2**64 - 1), "i": st.integers(0, 40), "I": st.integers(0, 2**32 - 1)}
    values = [draw(numbers[letter]) for letter in form[1:]]
    return record(kind, draw(st.integers(0, 3)), draw(st.integers(1, 3)), struct.pack(form, *values))


@given(st.lists(any_record(), max_size=20), flags)
@settings(max_examples=100, deadline=None)
def test_any_order_of_any_records_is_shown(records, changed):
    lines = shown(records, **changed)
    leaves = sum("();" in line for line in lines)
    assert len(lines) == len(records) - leaves
    assert all(line.endswith("\n") for line in lines)
