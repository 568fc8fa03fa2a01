"""Sizes, alignments, and values to bytes and back."""

from __future__ import annotations

import ctypes
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox.abi import layout
from sandbox.abi.signatures import Array, Floating, Integer, Pointer, Record, Type
from sandbox.compile.codegen import parse, target_machine
from sandbox.compile.irtypes import IrInterface, declarations

TYPES = ["i1", "i8", "i16", "i24", "i32", "i48", "i64", "i65", "i128", "half", "float", "double", "x86_fp80", "ptr",
         "{ i8, i32 }", "<{ i8, i32 }>", "[3 x i16]", "{ i8, [2 x { i16, i8 }], double }", "<4 x float>", "<3 x i32>",
         "<2 x i8>", "{ i8, i128 }", "{ i8, <4 x i64> }", "{ x86_fp80, i8 }", "{}", "[0 x i64]"]  # fmt: skip


@pytest.mark.parametrize("written", TYPES)
def test_size_and_alignment_are_llvms(written):
    module = parse(f"@g = global {written} zeroinitializer\ndefine {written} @f() {{ unreachable }}", "test")
    kind = IrInterface(declarations(str(module))).signature("f").returns
    data = target_machine(0).target_data
    expected = module.get_global_variable("g").global_value_type
    assert layout.size_of(kind) == data.get_abi_size(expected)
    assert layout.alignment_of(kind) == data.get_abi_alignment(expected)


def test_offsets_are_llvms():
    written = "{ i8, i32, i8, x86_fp80, [3 x i8], <2 x float>, i48, ptr }"
    module = parse(f"@g = global {written} zeroinitializer\ndefine {written} @f() {{ unreachable }}", "test")
    kind = IrInterface(declarations(str(module))).signature("f").returns
    expected = module.get_global_variable("g").global_value_type
    data = target_machine(0).target_data
    assert isinstance(kind, Record)
    offsets = [offset for offset, _, _ in layout.fields_of(kind)]
    assert offsets == [data.get_element_offset(expected, i) for i in range(8)]


def test_a_structure_lies_as_ctypes_lays_it():
    class Inner(ctypes.Structure):
        _fields_ = [("a", ctypes.c_char), ("b", ctypes.c_short * 3), ("c", ctypes.c_double)]

    kind = Record((("a", Integer(8, True)), ("b", Array(Integer(16, True), 3)), ("c", Floating("double"))), "Inner")
    data = bytes(Inner(b"x", (1, -2, 3), 2.5))
    assert layout.decode(data, kind) == (120, (1, -2, 3), 2.5)
    assert Inner.from_buffer_copy(layout.encode((120, (1, -2, 3), 2.5), kind, "value")).b[1] == -2


scalars = st.one_of(
    st.integers(1, 128).map(Integer),
    st.builds(Integer, st.sampled_from([8, 16, 32, 64]), st.booleans()),
    st.sampled_from([Floating("half"), Floating("float"), Floating("double"), Floating("x86_fp80"), Pointer()]),
)
kinds = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.builds(Array, inner, st.integers(0, 4)),
        st.builds(
            lambda fields, packed: Record(tuple((f"_{i}", f) for i, f in enumerate(fields)), packed=packed),
            st.lists(inner, max_size=4),
            st.booleans(),
        ),
    ),
    max_leaves=6,
)


def values(kind: Type) -> st.SearchStrategy:
    if isinstance(kind, Integer):
        if kind.bits == 1:
            return st.booleans()
        low, high = (0, (1 << kind.bits) - 1) if kind.signed is False else (kind.lowest, (1 << (kind.bits - 1)) - 1)
        return st.integers(low, high)
    if isinstance(kind, Pointer):
        return st.integers(0, 2**64 - 1)
    if isinstance(kind, Floating):
        return st.floats(width={"half": 16, "float": 32}.get(kind.kind, 64), allow_nan=False)
    if isinstance(kind, Array):
        return st.tuples(*[values(kind.element)] * kind.count)
    return st.tuples(*(values(field) for _, field in kind.fields))


@settings(max_examples=200, deadline=None)
@given(st.data(), kinds)
def test_what_is_encoded_is_decoded(data, kind):
    value = data.draw(values(kind))
    encoded = layout.encode(value, kind, "value")
    assert len(encoded) == layout.size_of(kind)
    assert layout.decode(encoded, kind) == value


def test_not_a_number_survives():
    for kind in ("half", "float", "double", "x86_fp80"):
        assert math.isnan(layout.decode(layout.encode(math.nan, Floating(kind), "value"), Floating(kind)))


PAIR = Record((("x", Integer(32, True)), ("y", Floating("double"))), "struct pair")


def test_named_fields_give_a_namedtuple_and_take_a_mapping():
    value = layout.decode(layout.encode({"y": 2.5}, PAIR, "p"), PAIR)
    assert value == (0, 2.5) and value.y == 2.5
    assert repr(value) == "pair(x=0, y=2.5)"


@pytest.mark.parametrize("name", ["pair<int, char const*>", "basic_string<char>::{...}", "class", "union {...}", ""])
def test_values_of_a_record_whose_name_is_none_in_python(name):
    value = layout.decode(layout.encode((1, 2.5), kind := Record(PAIR.fields, name), "p"), kind)
    assert repr(value) == "record(x=1, y=2.5)"


@pytest.mark.parametrize(
    ("value", "kind", "error", "message"),
    [
        ("x", Integer(8), TypeError, r"^v: expected an integer for i8, got 'x'"),
        (1.0, Integer(8), TypeError, r"^v: expected an integer for i8, got 1.0"),
        (256, Integer(8), OverflowError, r"^v: 256 is out of range for i8 \(-128..255\)"),
        (-1, Integer(8, False, "char"), OverflowError, r"^v: -1 is out of range for char \(0..255\)"),
        (True, Floating("double"), TypeError, r"^v: expected a number for double, got True"),
        ("1", Floating("float"), TypeError, r"^v: expected a number for float, got '1'"),
        (1e39, Floating("float"), OverflowError, r"^v: 1e\+39 is out of range for float"),
        (10**400, Floating("double"), OverflowError, r"^v: 1000+ is out of range for double"),
        ((1,), PAIR, TypeError, r"^v: expected 2 values for struct pair, got 1: \(1,\)"),
        (7, PAIR, TypeError, r"^v: expected 2 values for struct pair, got 7"),
        ({"z": 1}, PAIR, TypeError, r"^v: struct pair has no field 'z'"),
        ((1, "q"), PAIR, TypeError, r"^v.y: expected a number for double, got 'q'"),
        ((1, 2, "x"), Array(Integer(8), 3), TypeError, r"^v\[2\]: expected an integer"),
        (b"123", PAIR, TypeError, r"^v: 3 bytes given for struct pair, which has 16"),
    ],
)
def test_what_does_not_fit_is_named(value, kind, error, message):
    with pytest.raises(error, match=message):
        layout.encode(value, kind, "v")


@pytest.mark.parametrize("kind", [Floating("fp128"), Floating("bfloat"), Array(Integer(1), 8, True)])
def test_what_cannot_be_converted_says_so(kind):
    assert not layout.is_decodable(kind)
    with pytest.raises(TypeError, match="cannot be converted"):
        layout.encode(1, kind, "value")
    with pytest.raises(TypeError, match="cannot be converted"):
        layout.decode(bytes(16), kind)
