"""Event filters: which are accepted, what is said of the others, and what they let pass (TE-6.1 to 6.7, 6.9, 6.10)."""

from __future__ import annotations

import errno
import operator
import re

import pytest
from event_records import FIELDS, record
from filter_model import Context
from filter_model import passes as record_passes
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrace.tracing.events.filters.errors import FilterError, FilterErrorCode
from ftrace.tracing.events.filters.fields import PlainField
from ftrace.tracing.events.filters.operands import parse_cpulist, possible_cpus
from ftrace.tracing.events.filters.parser import parse_filter

CODE = FilterErrorCode


def functions(which):
    known = {"vfs_read": (0x1000, 0x1040), "vfs_write": (0x1040, 0x1080)}
    if isinstance(which, str):
        return known.get(which)
    return next((found for found in known.values() if found[0] <= which < found[1]), None)


def passes(text, comm=b"hit", cpu=0, **values):
    return record_passes(parse_filter(text, FIELDS, functions), record(**values), Context(comm, cpu))


def refused(text):
    with pytest.raises(FilterError) as caught:
        parse_filter(text, FIELDS, functions)
    return caught.value.code, caught.value.position, caught.value.errno


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("fd == 3", [(3, 5), (3, 16)]),
        ("fd != 3", [(4, 5), (-1, 255), (2, 6)]),
        ("fd < 3", [(-1, 255), (2, 6)]),
        ("fd <= 3", [(3, 5), (3, 16), (-1, 255), (2, 6)]),
        ("fd > 3", [(4, 5)]),
        ("fd >= 3", [(3, 5), (4, 5), (3, 16)]),
        ("bl & 1", [(3, 5), (4, 5), (-1, 255)]),
        ("fd == -1", [(-1, 255)]),
        ("fd == 0x3", [(3, 5), (3, 16)]),
        ("fd == 03", [(3, 5), (3, 16)]),
        ("!(fd == 3)", [(4, 5), (-1, 255), (2, 6)]),
        ("fd==3||bl==5", [(3, 5), (4, 5), (3, 16)]),
        ("fd == 3 && bl == 5 || fd == 4", [(3, 5), (4, 5)]),
        ("fd == 3 && (bl == 5 || fd == 4)", [(3, 5)]),
        ("(fd > 1 && bl < 20) && !(bl == 5)", [(3, 16), (2, 6)]),
        ("  fd   ==   3  ", [(3, 5), (3, 16)]),
        ("!!(fd == 4)", [(4, 5)]),
        ("!fd == 4", [(3, 5), (3, 16), (-1, 255), (2, 6)]),
        ("!(fd == 3 && !(bl == 5)) && fd > 2", [(3, 5), (4, 5)]),
        ("!(fd == 3 || fd == 4)", [(-1, 255), (2, 6)]),
        ("fd == 3 &&", [(3, 5), (3, 16)]),
        ("fd == 4 || ", [(4, 5)]),
        ("fd == 3 || fd == 4 &&", [(3, 5), (4, 5), (3, 16)]),
        ("fd == 3 || !!", [(3, 5), (3, 16)]),
        ("fd == 4294967299", [(3, 5), (3, 16)]),
    ],
)
def test_integer_filters_keep_what_the_kernel_keeps(text, kept):
    calls = [(3, 5), (4, 5), (3, 16), (-1, 255), (2, 6)]
    assert [call for call in calls if passes(text, fd=call[0], bl=call[1])] == kept


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ('name == "/etc/passwd"', ["/etc/passwd"]),
        ('name != "/etc/passwd" && name ~ "/etc/*"', ["/etc/group"]),
        ('name ~ "/etc/*"', ["/etc/passwd", "/etc/group"]),
        ('name ~ "*passwd"', ["/etc/passwd"]),
        ('name ~ "*etc*"', ["/etc/passwd", "/etc/group"]),
        ('name ~ "/etc/passw?"', ["/etc/passwd"]),
        ('name ~ "/etc/[gp]*"', ["/etc/passwd", "/etc/group"]),
        ('name ~ "/*/*o*"', ["/etc/group", "/nosuch/foo"]),
        ("name == '/etc/group'", ["/etc/group"]),
        ('!(name ~ "/etc/*") && name ~ "/n*"', ["/nosuch/foo"]),
        ('name ~ "/etc/passwd"', ["/etc/passwd"]),
        ('name ~ "etc"', []),
        ('name ~ "!/etc/*"', ["/nosuch/foo", ""]),
        ('name ~ "/e\\tc*"', ["/etc/passwd", "/etc/group"]),
        ('name ~ "*"', ["/etc/passwd", "/etc/group", "/nosuch/foo", ""]),
        ('name ~ ""', []),
        ('name == ""', [""]),
        ('comm == "hit" && name ~ "/etc/*"', ["/etc/passwd", "/etc/group"]),
        ('COMM ~ "h*" && name ~ "/nosuch*"', ["/nosuch/foo"]),
        ('comm ~ "*it" && name.ustring ~ "/nosuch*"', ["/nosuch/foo"]),
        ('comm == "other" || name == "(fd == 3) && x"', []),
    ],
)
def test_text_filters_keep_what_the_kernel_keeps(text, kept):
    names = ["/etc/passwd", "/etc/group", "/nosuch/foo", ""]
    assert [name for name in names if passes(text, name=name.encode())] == kept


@pytest.mark.parametrize(
    ("text", "passed"),
    [
        ('name == ""', False),
        ('name == "x"', False),
        ('name ~ "*"', False),
        ('name ~ "**"', False),
        ('name != "x"', True),
    ],
)
def test_text_that_could_not_be_read_equals_nothing(text, passed):
    assert passes(text, name=None) == passed


def test_a_pattern_that_begins_with_a_digit_is_compared_literally():
    assert passes('name ~ "1*"', name=b"1*")
    assert not passes('name ~ "1*"', name=b"12")


def test_text_without_a_final_zero_is_compared_to_its_end():
    data = record(name=b"symbol+0x4")[:-2]  # neither the 0 of `name` nor that of `names`
    data = data[:54] + (66).to_bytes(2, "little") + (9).to_bytes(2, "little") + data[58:]
    assert record_passes(parse_filter('name == "symbol+0x"', FIELDS), data)
    assert not record_passes(parse_filter('name == "symbol+0x4"', FIELDS), data)


def test_an_array_of_texts_is_compared_by_its_first():
    assert passes('names == "one"', names=b"one")


def test_text_inside_the_record():
    assert passes('fixed == "whole234"', fixed=b"whole234")
    assert passes('fixed ~ "*le"', fixed=b"whole\0le")


@pytest.mark.parametrize(
    ("text", "passed"),
    [
        ("u == 255", True), ("u == 511", True), ("u < 256", False), ("half == -2", True), ("half < 0", True),
        ("wide > 0x7fffffffffffffff", True), ("wide == 18446744073709551615", True), ("half & 0xfffe", True),
        ("four == 0x04030201", True), ("three == 0", False), ("three != 0", False), ("common_pid == 7", True),
        ("common_type == 0", True), ("stacktrace == 0", False), ("STACKTRACE != 0", False),
    ],
)  # fmt: skip
def test_values_are_compared_at_the_width_and_sign_of_the_field(text, passed):
    assert passes(text, u=255, half=-2, wide=-1, four=b"\1\2\3\4") == passed


def test_the_events_own_field_hides_a_generic_one():
    fields = [PlainField("u32", "cpu", 8, 4)]
    assert record_passes(parse_filter("cpu == 9", fields), bytes(8) + bytes([9, 0, 0, 0]))


def test_the_cpu_of_the_task():
    assert passes("cpu == 2", cpu=2) and passes("CPU >= 2", cpu=2) and not passes("common_cpu < 2", cpu=2)
    assert not passes("cpu & 2", cpu=2)


@pytest.fixture
def eight_cpus(monkeypatch):
    monkeypatch.setattr("ftrace.tracing.events.filters.operands.possible_cpus", lambda: 8)


@pytest.mark.usefixtures("eight_cpus")
@pytest.mark.parametrize(
    ("text", "passed"),
    [
        ("cpu == CPUS{2}", True), ("cpu != CPUS{2}", False), ("cpu & CPUS{2}", True), ("cpu & CPUS{1-3}", True),
        ("cpu & CPUS{0,1,4-7}", False), ("cpu == CPUS{1-3}", False), ("cpu != CPUS{1-3}", True),
        ("fd & CPUS{1-3}", True), ("fd == CPUS{3}", True), ("fd == CPUS{2-3}", False), ("fd != CPUS{2-3}", True),
        ("bl & CPUS{0-7}", False), ("wide != CPUS{2-3}", False), ("u & CPUS{0-7:1/3}", True), ("u & CPUS{all}", True),
    ],
)  # fmt: skip
def test_lists_of_cpus(text, passed):
    assert passes(text, cpu=2, fd=3, bl=-1, wide=1 << 40, u=6) == passed


@pytest.mark.parametrize(
    ("text", "mask"),
    [
        ("0", 1),
        ("0-3", 15),
        ("1,3", 10),
        ("N", 128),
        ("6-N", 192),
        ("all", 255),
        ("0-7:2/4", 0b00110011),
        ("0 2", 5),
        (",1,", 2),
    ],
)
def test_a_list_of_cpus_becomes_a_mask(text, mask):
    assert parse_cpulist(text, 8) == mask


@pytest.mark.parametrize("text", ["8", "3-1", "a", "\u0663", "1-", "-1", "0-7:3/2", "0-7:1/0", "0-8"])
def test_a_malformed_list_of_cpus_is_a_value_error(text):
    with pytest.raises(ValueError, match="CPUs"):
        parse_cpulist(text, 8)


def test_this_machine_has_a_possible_cpu():
    assert possible_cpus() >= 1


@pytest.mark.parametrize(
    ("text", "passed"),
    [
        ("__probe_ip.function == vfs_read", True), ("__probe_ip.function != vfs_read", False),
        ("__probe_ip.function == vfs_write", False), ("__probe_ip.function == 0x1004", True),
        ("(__probe_ip.function == vfs_read )", True), ("__probe_ip.function == vfs_read || fd == 1", True),
    ],
)  # fmt: skip
def test_an_address_inside_a_function(text, passed):
    assert passes(text, __probe_ip=0x103F) == passed


@pytest.mark.parametrize(
    ("text", "code", "position", "number"),
    [
        ("nosuch == 1", CODE.FIELD_NOT_FOUND, 7, errno.EINVAL),
        ("common_stacktrace == 1", CODE.FIELD_NOT_FOUND, 18, errno.EINVAL),  # only histograms know it
        ("common_comm == \"hit\"", CODE.FIELD_NOT_FOUND, 12, errno.EINVAL),
        ("((fd >= 10 && fd < 15) || dsig == 17) && comm != bash", CODE.FIELD_NOT_FOUND, 31, errno.EINVAL),
        ("fd = 3", CODE.INVALID_OP, 4, errno.EINVAL),
        ("fd", CODE.INVALID_OP, 3, errno.EINVAL),
        ("fd 3", CODE.INVALID_OP, 4, errno.EINVAL),
        ("name == /etc/passwd", CODE.INVALID_VALUE, 9, errno.EINVAL),
        ("fd ==", CODE.INVALID_VALUE, 6, errno.EINVAL),
        ("fd == +3", CODE.INVALID_VALUE, 7, errno.EINVAL),
        ("fd == (3)", CODE.INVALID_VALUE, 7, errno.EINVAL),
        *((f"fd == {value}", CODE.ILLEGAL_INTVAL, 7, errno.EINVAL) for value in ("3x", "08", "0b1", "1e3", "- 3")),
        ("fd == 9223372036854775808", CODE.ILLEGAL_INTVAL, 7, errno.EINVAL),
        ("wide == -1", CODE.ILLEGAL_INTVAL, 9, errno.EINVAL),
        ("u == -0", CODE.ILLEGAL_INTVAL, 6, errno.EINVAL),
        ("name == 3", CODE.EXPECT_STRING, 9, errno.EINVAL),
        ("fd == \"3\"", CODE.EXPECT_DIGIT, 7, errno.EINVAL),
        ("four ~ \"A*\"", CODE.EXPECT_DIGIT, 8, errno.EINVAL),
        ("name < \"x\"", CODE.ILLEGAL_FIELD_OP, 8, errno.EINVAL),
        ("fd ~ 3", CODE.ILLEGAL_FIELD_OP, 6, errno.EINVAL),
        ("fd < CPUS{0}", CODE.ILLEGAL_FIELD_OP, 6, errno.EINVAL),
        ("name == CPUS{0}", CODE.ILLEGAL_FIELD_OP, 9, errno.EINVAL),
        ("fd == CPUS{", CODE.MISSING_BRACE_CLOSE, 12, errno.EINVAL),
        ("fd == CPUS{}", CODE.INVALID_CPULIST, 12, errno.EINVAL),
        ("fd == CPUS{9999999}", CODE.INVALID_CPULIST, 19, errno.EINVAL),
        (f"name == \"{'x' * 256}\"", CODE.OPERAND_TOO_LONG, 266, errno.EINVAL),
        (f"fd == {'1' * 24}", CODE.OPERAND_TOO_LONG, 31, errno.EINVAL),
        ("__probe_ip.function == nosuchfn", CODE.NO_FUNCTION, 32, errno.EINVAL),
        ("__probe_ip.function == \"vfs_read\"", CODE.NO_FUNCTION, 34, errno.EINVAL),
        ("(__probe_ip.function == vfs_read)", CODE.NO_FUNCTION, 34, errno.EINVAL),
        ("__probe_ip.function == vfs_read&&fd == 1", CODE.NO_FUNCTION, 36, errno.EINVAL),
        ("__probe_ip.function == 0x10", CODE.NO_FUNCTION, 28, errno.EINVAL),
        ("__probe_ip.function > vfs_read", CODE.INVALID_OP, 23, errno.EINVAL),
        ("fd.function == vfs_read", CODE.ILLEGAL_FIELD_OP, 16, errno.EINVAL),
        ("((fd == 3", CODE.TOO_MANY_OPEN, 1, errno.ENOENT),
        ("((fd == 1) || bl == 2", CODE.TOO_MANY_OPEN, 0, errno.ENOENT),
        ("fd == 3)", CODE.TOO_MANY_CLOSE, 7, errno.EPERM),
        ("name == \"x", CODE.MISSING_QUOTE, 8, errno.ESRCH),
        ("fd == 3 bl == 4", CODE.TOO_MANY_PREDS, 8, errno.EPERM),
        ("(fd == 3) (bl == 4)", CODE.TOO_MANY_PREDS, 10, errno.EPERM),
        ("fd == 3 & bl == 4", CODE.TOO_MANY_PREDS, 8, errno.EPERM),
        ("fd == 1.5", CODE.TOO_MANY_PREDS, 7, errno.EPERM),
        ("fd == 3;", CODE.TOO_MANY_PREDS, 7, errno.EPERM),
        ("fd == 3 !(bl == 4)", CODE.TOO_MANY_PREDS, 8, errno.EPERM),
        ("!", CODE.NO_FILTER, 1, errno.EINVAL),
        ("!!", CODE.NO_FILTER, 2, errno.EINVAL),
        *((text, CODE.ERRNO, 0, errno.EINVAL) for text in ("", "   ", "()", "(())")),
        *(
            (text, CODE.ERRNO, 0, errno.EPERM)
            for text in ("|| !", "== 3", "&& fd == 3", "fd == 3 && || u == 2", "u == 3 && ()", "(!)", "!()", "(u == 3 &&)")
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_where_the_kernel_says_it(text, code, position, number):
    assert refused(text) == (code, position, number)


@pytest.mark.parametrize(
    ("text", "code", "position"),
    [
        ("(fd == 1 && __probe_ip.function == f)", CODE.TOO_MANY_OPEN, 38),
        ("__probe_ip.function == f( && (fd == 1))", CODE.TOO_MANY_CLOSE, 39),
    ],
)
def test_a_parenthesis_in_the_name_of_a_function_is_missing_elsewhere(text, code, position):
    with pytest.raises(FilterError) as caught:
        parse_filter(text, FIELDS, lambda _: (0x1000, 0x1040))
    assert (caught.value.code, caught.value.position, caught.value.errno) == (code, position, errno.EPERM)


def test_a_missing_brace_is_found_after_the_character_in_its_place():
    assert refused("fd == CPUS0}")[:2] == (CODE.MISSING_BRACE_OPEN, 12)


def test_nesting_deeper_than_pythons_stack_is_parsed():
    depth = 1990
    assert passes(f"{'(' * depth}fd == 3{')' * depth}", fd=3)
    assert passes("(fd == 1 || (bl == 2 && " * 150 + "fd == 3" + "))" * 150, fd=3, bl=2)


# -- a second evaluation: each generated filter comes with what it means ---------------------------------------------

WIDTHS = {"fd": (32, True), "half": (16, True), "u": (8, False), "x": (32, False), "wide": (64, False)}
OPERATORS = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "&": lambda one, other: one & other != 0,
}  # fmt: skip
GLOBS = {
    "a*": "a.*",
    "*b": ".*b",
    "*a*": ".*a.*",
    "ab": "ab",
    "a?b": "a.b",
    "[ab]x*": "[ab]x.*",
    "*": ".*",
    "a*b*a": "a.*b.*a",
}
interesting = st.one_of(st.integers(-3, 3), st.sampled_from([127, 128, 255, 256, 32767, 32768, 1 << 31, (1 << 64) - 1]))


def wrapped(value, bits, signed):
    low = value % (1 << bits)
    return low - (1 << bits) if signed and low >> (bits - 1) else low


@st.composite
def number_meaning(draw):
    name, op = draw(st.sampled_from(sorted(WIDTHS))), draw(st.sampled_from(sorted(OPERATORS)))
    bits, signed = WIDTHS[name]
    value = draw(interesting.filter(lambda value: (value < 1 << 63) if signed else value >= 0))
    space = draw(st.sampled_from(["", " ", "\t"]))
    return f"{name}{space}{op}{space}{value}", lambda values: OPERATORS[op](
        wrapped(values[name], bits, signed), wrapped(value, bits, signed)
    )


@st.composite
def text_meaning(draw):
    pattern, op = draw(st.sampled_from(sorted(GLOBS))), draw(st.sampled_from(["==", "!=", "~"]))
    expected = GLOBS[pattern] if op == "~" else re.escape(pattern)

    def meaning(values):
        matches = values["name"] is not None and re.fullmatch(expected, values["name"]) is not None
        return matches != (op == "!=")

    quote = draw(st.sampled_from("'\""))
    return f"name {op} {quote}{pattern}{quote}", meaning


def both(one, other):
    return f"{one[0]} && {other[0]}", lambda values: one[1](values) and other[1](values)


def either(one, other):
    return f"({one[0]}||{other[0]} )", lambda values: one[1](values) or other[1](values)


def neither(one):
    return f"!( {one[0]})", lambda values: not one[1](values)


def unless(one, other, third):
    """Without parentheses: `&&` binds more tightly."""
    return (
        f"({one[0]} || {other[0]} && {third[0]})",
        lambda values: one[1](values) or (other[1](values) and third[1](values)),
    )


meanings = st.recursive(
    st.one_of(number_meaning(), text_meaning()),
    lambda inner: st.one_of(
        st.builds(both, inner, inner),
        st.builds(either, inner, inner),
        st.builds(neither, inner),
        st.builds(unless, inner, inner, inner),
    ),
    max_leaves=12,
)
hits = st.fixed_dictionaries(
    dict.fromkeys(WIDTHS, interesting) | {"name": st.one_of(st.none(), st.text("abx", max_size=4))}
)


def agrees(filter_, values):
    text, meaning = filter_
    fields = {name: values[name] for name in WIDTHS}
    name = None if values["name"] is None else values["name"].encode()
    made = parse_filter(text, FIELDS, functions)
    assert record_passes(made, record(name=name, **fields)) == meaning(values), (text, values)


@settings(max_examples=25, deadline=None)
@given(meanings, hits)
def test_te6_1_a_filter_passes_what_its_text_means(filter_, values):
    agrees(filter_, values)


@pytest.mark.stress
@settings(max_examples=2_000, deadline=None)
@given(meanings, hits)
def test_te6_1_many_filters_pass_what_their_texts_mean(filter_, values):
    agrees(filter_, values)
