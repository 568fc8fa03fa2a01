"""Where arguments and results lie, by the System V ABI and by what LLVM does."""

from __future__ import annotations

import pytest

from sandbox.abi import convention as x86_64
from sandbox.abi.convention import REGISTERS, STACK, argument_places, result_place
from sandbox.abi.signatures import (
    Array,
    Complex,
    Floating,
    Form,
    Integer,
    Parameter,
    Pointer,
    Record,
    Signature,
    Unsupported,
    Void,
)

I32, I64, PTR = Integer(32), Integer(64), Pointer()
FLOAT, DOUBLE, EXTENDED = Floating("float"), Floating("double"), Floating("x86_fp80")
LANES = Array(I32, 4, is_vector=True)
NAMES = [
    "r15", "r14", "r13", "r12", "bp", "bx", "r11", "r10", "r9", "r8", "ax", "cx", "dx", "si", "di", "orig_ax",
    "ip", "cs", "flags", "sp", "ss",
]  # fmt: skip

NAMES_OF_ARGUMENTS = list(x86_64.ARGUMENT_REGISTERS)
VECTORS = [f"xmm{number}" for number in range(8)]


def _register(source):
    return NAMES[source // 8] if source < REGISTERS else VECTORS[(source - REGISTERS) // 16]


def described(place):
    """Pieces as text: `di`, `stack+8`, `si:4`; None if the value cannot be read."""
    if place is None:
        return None
    found = []
    for _, source, size in place.pieces:
        name = f"stack+{source - STACK}" if source >= STACK else _register(source)
        found.append(name if size == 8 else f"{name}:{size}")
    return ("*" if place.indirect else "") + " ".join(found)


def arguments(*kinds, is_c=False, returns=None):
    signature = Signature("f", returns or Void(), tuple(map(Parameter, kinds)), is_c=is_c)
    return [described(place) for _, place in argument_places(signature)[0]]


def result(kind, *, is_c=False):
    return described(result_place(Signature("f", kind, (), is_c=is_c)))


def record(*kinds):
    return Record(tuple((f"f{number}", kind) for number, kind in enumerate(kinds)))


def test_six_registers_then_the_stack():
    assert arguments(*[I64] * 8) == ["di", "si", "dx", "cx", "r8", "r9", "stack+0", "stack+8"]


def test_floating_point_arguments_take_no_integer_register():
    assert arguments(I64, DOUBLE, PTR, FLOAT) == ["di", "xmm0", "si", "xmm1:4"]


def test_the_ninth_floating_point_argument_is_on_the_stack():
    assert arguments(*[DOUBLE] * 9, I64) == [*VECTORS, "stack+0", "di"]


def test_vectors_take_a_register():
    assert arguments(LANES, DOUBLE) == ["xmm0:16", "xmm1"]


def test_small_integers_keep_their_size():
    assert arguments(Integer(1), Integer(8), I32) == ["di:1", "si:1", "dx:4"]


def test_stack_words_hold_one_small_integer_each():
    assert arguments(*[I64] * 6, Integer(8), I32) == ["di", "si", "dx", "cx", "r8", "r9", "stack+0:1", "stack+8:4"]


def test_a_wide_integer_takes_two_registers():
    assert arguments(I64, Integer(128), I64) == ["di", "si dx", "cx"]


def test_ir_passes_each_field_on_its_own():
    assert arguments(record(I64, I32), I64) == ["di si:4", "dx"]
    assert arguments(record(I64, DOUBLE), I64) == ["di xmm0", "si"]


def test_c_packs_small_structs_into_words():
    assert arguments(record(I32, I32), I64, is_c=True) == ["di", "si"]
    assert arguments(record(I64, I32), I64, is_c=True) == ["di si", "dx"]
    assert arguments(record(DOUBLE, I32), I64, is_c=True) == ["xmm0 di", "si"]


def test_c_puts_large_structs_on_the_stack():
    assert arguments(record(I64, I64, I64), I64, is_c=True) == ["stack+0:24", "di"]


def test_c_never_splits_a_struct_between_registers_and_stack():
    assert arguments(*[I64] * 5, record(I64, I64), I64, is_c=True)[5:] == ["stack+0:16", "r9"]


def test_arrays_in_c_structs():
    assert arguments(record(Array(Integer(8), 12)), is_c=True) == ["di si:4"]


def test_byval_is_a_copy_on_the_stack():
    signature = Signature("f", Void(), (Parameter(PTR, copied=record(I64, I64, I64)), Parameter(I64)))
    places, stack = argument_places(signature)
    assert [described(place) for _, place in places] == ["stack+0:24", "di"]
    assert stack == 24


def test_room_for_the_result_comes_first():
    signature = Signature("f", Void(), (Parameter(PTR, returned=record(I64, I64, I64)), Parameter(I64)))
    assert [described(place) for _, place in argument_places(signature)[0]] == ["si"]
    assert described(result_place(signature)) == "*ax"
    assert arguments(I64, is_c=True, returns=record(I64, I64, I64)) == ["si"]
    assert result(record(I64, I64, I64), is_c=True) == "*ax"


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        (I64, "ax"),
        (I32, "ax:4"),
        (PTR, "ax"),
        (Void(), None),
        (DOUBLE, "xmm0"),
        (FLOAT, "xmm0:4"),
        (LANES, "xmm0:16"),
        (EXTENDED, None),
        (Integer(128), "ax dx"),
    ],
)
def test_scalar_results(kind, place):
    assert result(kind) == place


def test_struct_results():
    assert result(record(I64, I64, I64)) == "ax dx cx"
    assert result(record(I64, I64, I64, I64)) == "*ax"
    assert result(record(I32, I32), is_c=True) == "ax"
    assert result(record(DOUBLE, I64), is_c=True) == "xmm0 ax"
    assert result(record(DOUBLE, DOUBLE), is_c=True) == "xmm0 xmm1"


def with_form(kinds, size, alignment=8, bits=None, **rest):
    placed = bits or tuple((8 * at, 0) for at, _, _ in x86_64.layout.fields_of(record(*kinds)))
    return Record(record(*kinds).fields, form=Form(size, alignment, placed, "", **rest))


WIDE = record(I64, I64, I64)
UNKNOWN = Unsupported("struct who", "its layout is not known")
ALIGNED = with_form([I64, I64, I64], 32, 16)


@pytest.mark.parametrize(
    ("kinds", "places"),
    [
        ([WIDE, WIDE], ["stack+0:24", "stack+24:24"]),
        ([WIDE, ALIGNED, WIDE], ["stack+0:24", "stack+32:32", "stack+64:24"]),
        ([WIDE, EXTENDED, *[I64] * 7], ["stack+0:24", "stack+32:16", *NAMES_OF_ARGUMENTS, "stack+48"]),
        ([*[I64] * 5, Integer(128), I64, WIDE], [*NAMES_OF_ARGUMENTS[:5], "stack+0:16", "r9", "stack+16:24"]),
        ([*[I64] * 7, Integer(128)], [*NAMES_OF_ARGUMENTS, "stack+0", "stack+16:16"]),
    ],
)
def test_c_aligns_stack_arguments_by_their_types(kinds, places):
    assert arguments(*kinds, is_c=True) == places


def test_a_structure_that_may_be_packed_makes_places_after_it_uncertain():
    dense = record(EXTENDED, I64, I64)
    assert arguments(dense, WIDE, I64, is_c=True) == ["stack+0:32", "stack+32:24", "di"]
    assert arguments(WIDE, dense, WIDE, I64, is_c=True) == ["stack+0:24", None, None, "di"]


@pytest.mark.parametrize(
    ("kinds", "places"),
    [
        ([I64, UNKNOWN, I64, DOUBLE, WIDE], ["di", None, None, None, None]),
        # In each case it takes one integer register.
        ([with_form([I32], 4, 4, by_reference=None), I64, DOUBLE], [None, "si", "xmm0"]),
        ([with_form([DOUBLE], 8, by_reference=None), I64, DOUBLE, WIDE], [None, None, None, "stack+0:24"]),
        ([with_form([I64] * 3, 24, by_reference=None), I64, DOUBLE, WIDE], [None, None, "xmm0", None]),
        # Vector registers may be too small for it.
        ([Array(FLOAT, 8, is_vector=True), I64, DOUBLE, WIDE], [None, "di", None, None]),
        ([Unsupported("struct who", "", by_reference=True), I64], ["*di", "si"]),
    ],
)
def test_what_follows_an_unknown_place_is_right_or_unknown(kinds, places):
    assert arguments(*kinds, is_c=True) == places


def test_an_unknown_result_may_have_taken_the_first_register():
    assert arguments(I64, DOUBLE, WIDE, is_c=True, returns=UNKNOWN) == [None, "xmm0", "stack+0:24"]


def test_llvm_splits_wide_integers_but_not_those_of_128_bits():
    assert arguments(*[I64] * 5, Integer(128), I64) == [*NAMES_OF_ARGUMENTS[:5], "stack+0:16", "r9"]
    assert arguments(*[I64] * 5, Integer(72), I64) == [*NAMES_OF_ARGUMENTS[:5], "r9 stack+0", "stack+8"]


def test_llvm_splits_all_wide_integers_in_aggregates():
    fields = record(Integer(128), I64)
    assert arguments(*[I64] * 5, fields, I64) == [*NAMES_OF_ARGUMENTS[:5], "r9 stack+0 stack+8", "stack+16"]


def test_small_vectors_of_llvm_take_16_bytes_of_stack():
    small = Array(FLOAT, 2, is_vector=True)
    assert arguments(*[DOUBLE] * 8, small, DOUBLE) == [*VECTORS, "stack+0", "stack+16"]


def test_llvm_returns_integers_that_need_four_registers_in_memory():
    assert arguments(I64, returns=Integer(256)) == ["si"]
    assert result(Integer(256)) == "*ax"


@pytest.mark.parametrize(
    ("kind", "places", "returned"),
    [
        (with_form([I32, FLOAT], 4, 4, ((0, 0), (0, 0))), ["di:4", "si"], "ax:4"),
        (with_form([Array(FLOAT, 4), I32], 16, 4, ((0, 0), (0, 0))), ["di xmm0", "si"], "ax xmm0"),
        (with_form([Integer(8), I32], 5, 1, ((0, 0), (8, 0))), ["stack+0:5", "di"], "*ax"),
        (with_form([I64, FLOAT], 16, 8, ((0, 40), (64, 0))), ["di xmm0", "si"], "ax xmm0"),
        (with_form([FLOAT], 16, 16), ["xmm0", "di"], "xmm0"),
        (with_form([I32], 4, 4, by_reference=True), ["*di", "si"], "*ax"),
        (with_form([I32], 4, 4, in_memory=True), ["stack+0:4", "di"], "*ax"),
        (record(EXTENDED), ["stack+0:16", "di"], None),
        (with_form([EXTENDED, DOUBLE], 16, 16, ((0, 0), (0, 0))), ["stack+0:16", "di"], "*ax"),
        (with_form([EXTENDED, I32], 16, 16, ((0, 0), (0, 0))), ["stack+0:16", "di"], "*ax"),
        (Complex(FLOAT), ["xmm0", "di"], "xmm0"),
        (Complex(DOUBLE), ["xmm0 xmm1", "di"], "xmm0 xmm1"),
        (Complex(EXTENDED), ["stack+0:32", "di"], None),
        (Complex(I32), ["di", "si"], "ax"),
        (Array(I32, 2, is_vector=True), ["xmm0", "di"], "xmm0"),
        (Array(DOUBLE, 1, is_vector=True), ["stack+0", "di"], None),
        (Floating("fp128"), ["xmm0:16", "di"], "xmm0:16"),
    ],
)
def test_classes_of_c(kind, places, returned):
    assert arguments(kind, I64, is_c=True) == places
    assert result(kind, is_c=True) == returned


def test_another_calling_convention_is_unknown():
    signature = Signature("f", I64, (Parameter(I64), Parameter(DOUBLE)), convention="cc 10")
    assert [place for _, place in argument_places(signature)[0]] == [None, None]
    assert result_place(signature) is None


def test_parameters_with_registers_of_their_own_take_no_other():
    signature = Signature("f", I64, (Parameter(PTR, attributes=("nest",)), Parameter(I64)))
    assert [described(place) for _, place in argument_places(signature)[0]] == [None, "di"]


def test_copies_on_the_stack_have_the_alignment_that_is_given():
    copies = [Parameter(PTR, copied=WIDE, attributes=given) for given in ((), ("align 32",), ("align 4",))]
    places, _ = argument_places(Signature("f", Void(), (*copies, Parameter(I64))))
    assert [described(place) for _, place in places] == ["stack+0:24", "stack+32:24", "stack+56:24", "di"]


def test_gathering_puts_the_pieces_together():
    image = b"".join(number.to_bytes(8, "little") for number in range(21))
    place = argument_places(Signature("f", Void(), (Parameter(record(I64, I32)),)))[0][0][1]
    assert place.gather(image) == (14).to_bytes(8, "little") + (13).to_bytes(4, "little") + bytes(4)
    assert image[x86_64.STACK_POINTER : x86_64.STACK_POINTER + 8] == (19).to_bytes(8, "little")
