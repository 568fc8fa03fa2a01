"""Compiled filters agree with their evaluation in Python."""

from __future__ import annotations

import ctypes
import os
import threading

import pytest
from event_records import FIELDS, record
from filter_model import Context, passes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ftrace.core.handlers.native_link import ALLOWED
from ftrace.tracing.events.filters.compiled import FilterCode, compile_filter
from ftrace.tracing.events.filters.errors import FilterError
from ftrace.tracing.events.filters.fields import PlainField
from ftrace.tracing.events.filters.parser import parse_filter
from sandbox.native import Unit
from sandbox.native.back.compile import compile_unit
from sandbox.native.back.verify import verify_object

NUMBERS = [
    field for field in FIELDS if field.size in (1, 2, 4, 8) and "char" not in field.type and field.name != "names"
]
ALPHABET = "ab[]!*?\\-x"


def functions(which):
    return (0x1000, 0x1040)


@st.composite
def number_tests(draw):
    field = draw(st.sampled_from(NUMBERS))
    op = draw(st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "&"]))
    low, high = (-(1 << 63), (1 << 63) - 1) if field.signed else (0, (1 << 64) - 1)
    value = draw(
        st.one_of(st.integers(low, high), st.integers(max(low, -4), 4), st.sampled_from([127, 128, 255, 32768]))
    )
    return f"{field.name} {op} {value}"


@st.composite
def text_tests(draw):
    name = draw(st.sampled_from(["name", "names", "fixed"]))
    op = draw(st.sampled_from(["==", "!=", "~"]))
    return f'{name} {op} "{draw(st.text(ALPHABET, max_size=7))}"'


rare_tests = st.sampled_from(
    [
        "fd & CPUS{0}", "bl != CPUS{all}", "wide & CPUS{all}", "u == CPUS{0}", "half & CPUS{all}", "three == 1",
        "__probe_ip.function == f ", "__probe_ip.function != f ", 'name ~ "!a*"', 'name ~ "!"',
    ]
)  # fmt: skip


def joined(inner):
    return st.one_of(
        st.builds("{} && {}".format, inner, inner),
        st.builds("{} || {}".format, inner, inner),
        st.builds("!({})".format, inner),
        st.builds("({})".format, inner),
    )


filters = st.recursive(st.one_of(number_tests(), text_tests(), rare_tests), joined, max_leaves=8)
texts = st.text(ALPHABET + "\0", max_size=9).map(str.encode)
fixed_texts = st.lists(st.sampled_from((ALPHABET + "\0").encode()), min_size=8, max_size=8).map(bytes)


values_of_numbers = st.one_of(
    st.integers(-4, 4), st.integers(0, (1 << 64) - 1), st.sampled_from([0x1000, 0x103F, 0x1040])
)


@st.composite
def records(draw):
    values = {field.name: draw(values_of_numbers) for field in NUMBERS}
    name = draw(st.one_of(st.none(), texts))
    return record(name=name, names=draw(texts), fixed=draw(fixed_texts), **values)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(filters, st.lists(records(), min_size=3, max_size=6))
def test_a_compiled_filter_agrees_with_python(text, candidates):
    filter_ = parse_filter(text, FIELDS, functions)
    compiled = compile_filter(filter_)
    for candidate in candidates:
        assert compiled.passes(candidate) == passes(filter_, candidate), (text, candidate)


@settings(max_examples=300, deadline=None)
@given(st.text(ALPHABET, max_size=9), st.text(ALPHABET, max_size=9))
def test_the_native_glob_agrees_with_the_pattern_language(pattern, text):
    filter_ = parse_filter(f'name ~ "*{pattern}*?*"', FIELDS)
    data = record(name=text.encode())
    assert _glob().passes(data, pattern) == passes(filter_, data)


class _Glob:
    """match_glob, given its pattern at run time: no compilation for each."""

    def __init__(self):
        from ftrace.hit.events import matching
        from sandbox.native.native_image import NativeImage

        self._image = NativeImage.of(Unit("glob-test", [matching.match_glob], bounded=False))

    def passes(self, data, pattern):
        start, size = (int.from_bytes(data[at : at + 2], "little") for at in (54, 56))
        text = ctypes.create_string_buffer(data[start : start + size], size)
        search = f"*{pattern}*?*".encode()
        held = ctypes.create_string_buffer(search, len(search))
        arguments = (ctypes.addressof(text), size, ctypes.addressof(held), len(search))
        return bool(self._image.call("match_glob", *arguments) & 1)


def _glob(made=[]):  # noqa: B006
    if not made:
        made.append(_Glob())
    return made[0]


def test_the_tasks_name_and_cpu_are_those_of_the_thread_that_records():
    found = {}

    def run():
        with open("/proc/thread-self/comm", "w") as file:  # noqa: PTH123
            file.write("recorder")
        found["comm"] = compile_filter(parse_filter('comm == "recorder"', FIELDS)).passes(record())
        found["glob"] = compile_filter(parse_filter('comm ~ "rec*" && comm ~ "*der"', FIELDS)).passes(record())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == {"comm": True, "glob": True}
    assert not compile_filter(parse_filter('comm == "recorder"', FIELDS)).passes(record())


def test_the_cpu_is_the_one_that_the_thread_runs_on():
    allowed = os.sched_getaffinity(0)
    try:
        for cpu in allowed:
            os.sched_setaffinity(0, {cpu})
            assert compile_filter(parse_filter(f"cpu == {cpu}", FIELDS)).passes(record())
            assert compile_filter(parse_filter(f"cpu & CPUS{{{cpu}}}", FIELDS)).passes(record())
            assert not compile_filter(parse_filter(f"cpu != {cpu}", FIELDS)).passes(record())
    finally:
        os.sched_setaffinity(0, allowed)


def test_without_a_sequences_area_the_cpu_is_asked_of_the_kernel(monkeypatch):
    monkeypatch.setattr("ftrace.tracing.events.filters.compiled.rseq_offset", lambda: 0)
    filter_ = parse_filter("cpu >= 0 && cpu < 4096", FIELDS)
    assert compile_filter(filter_).passes(record())


def test_text_whose_location_leads_out_of_the_record_is_cut():
    data = bytearray(record(name=b"abc"))
    data[56:58] = (0xFFFF).to_bytes(2, "little")
    filter_ = parse_filter('name ~ "*zzzz*" || name == "abc"', FIELDS)
    assert compile_filter(filter_).passes(bytes(data)) == passes(filter_, bytes(data)) is True
    data[54:56] = (0xFFFF).to_bytes(2, "little")
    assert compile_filter(filter_).passes(bytes(data)) == passes(filter_, bytes(data)) is False


def test_compiled_filters_touch_no_vector_registers_and_call_nothing():
    text = 'fd == 3 && (name ~ "*[a-c]?x" || comm ~ "*b*" || names ~ "x*") && cpu & CPUS{0} && fixed ~ "*x"'
    code = FilterCode(parse_filter(text, FIELDS))
    made = compile_unit(Unit("verified", code.functions, bounded=False, llvm=code.llvm))
    assert verify_object(made, ALLOWED) == []


def test_filters_with_the_same_tests_share_their_code():
    one, other = parse_filter("fd == 3", FIELDS), parse_filter("fd==0x3", FIELDS)
    assert compile_filter(one) is compile_filter(other)


@pytest.mark.parametrize("text", ['comm == "x"', "cpu == 70000"])
def test_python_evaluation_takes_the_task_from_its_context(text):
    context = Context(b"x", 70000)
    assert passes(parse_filter(text, FIELDS), record(), context)


@pytest.mark.parametrize("op", ["<", ">=", "&"])
@pytest.mark.parametrize("name", ["fd", "x", "half", "u", "wide"])
def test_compiled_comparisons_have_the_sign_of_the_field(name, op):
    filter_ = parse_filter(f"{name} {op} 1", FIELDS)
    compiled = compile_filter(filter_)
    for value in (-(1 << 63), -128, -2, -1, 0, 1, 2, 127, 128, 1 << 31, 1 << 63):
        data = record(**{name: value})
        assert compiled.passes(data) == passes(filter_, data)


@pytest.mark.parametrize(("text", "passed"), [('buf == "stop"', True), ('buf == "sto"', False), ('buf ~ "*op"', True)])
def test_text_without_a_size_reaches_to_the_end_of_the_record(text, passed):
    """What trace_marker writes: a filter of ftrace:print looks at the text as it was written."""
    filter_ = parse_filter(text, [PlainField("char[]", "buf", 16, 0)])
    for data in (bytes(16) + b"stop", bytes(16) + b"stop\0"):
        assert compile_filter(filter_).passes(data) == passes(filter_, data) == passed
    assert not compile_filter(filter_).passes(bytes(16))


FUZZED = st.text("()!&|=<>~ 3x\"'fdnamecpuCPUS{}-,.0", max_size=30)


@pytest.mark.stress
@settings(max_examples=100, deadline=None)
@given(st.one_of(FUZZED, st.text(max_size=20)))
def test_any_text_is_a_filter_or_an_error_within_a_caret_of_it(text):
    try:
        filter_ = parse_filter(text, FIELDS)
    except FilterError as error:
        assert 0 <= error.position <= len(text) + 2
        assert error.report(text).startswith(text)
    else:
        assert passes(filter_, record()) in (True, False)
        assert parse_filter(filter_.text, FIELDS) == filter_


@pytest.mark.stress
@pytest.mark.timeout(900)
@settings(max_examples=5000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(filters, st.lists(records(), min_size=3, max_size=6))
def test_many_compiled_filters_agree_with_python(text, candidates):
    filter_ = parse_filter(text, FIELDS, functions)
    compiled = compile_filter(filter_)
    for candidate in candidates:
        assert compiled.passes(candidate) == passes(filter_, candidate), (text, candidate)
