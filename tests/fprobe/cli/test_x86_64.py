"""Where arguments and results lie, by the System V ABI and by what LLVM does."""

from __future__ import annotations

import pytest

from sandbox.abi import convention as x86_64
from sandbox.abi.convention import STACK, argument_places, result_place
from sandbox.abi.signatures import Array, Floating, Integer, Parameter, Pointer, Record, Signature, Void

I32, I64, PTR = Integer(32), Integer(64), Pointer()
FLOAT, DOUBLE, EXTENDED = Floating("float"), Floating("double"), Floating("x86_fp80")
LANES = Array(I32, 4, is_vector=True)
NAMES = [
    "r15", "r14", "r13", "r12", "bp", "bx", "r11", "r10", "r9", "r8", "ax", "cx", "dx", "si", "di", "orig_ax",
    "ip", "cs", "flags", "sp", "ss",
]  # fmt: skip

VECTORS = [f"xmm{number}" for number in range(8)]


def described(place):
    """Pieces as text: `di`, `stack+8`, `si:4`; None if the value cannot be read."""
    if place is None:
        return None
    found = []
    for _, source, size in place.pieces:
        name = f"stack+{source - STACK}" if source >= STACK else [*NAMES, *VECTORS][source // 8]
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


def test_vectors_take_a_register_but_only_half_of_it_can_be_seen():
    assert arguments(LANES, DOUBLE) == [None, "xmm1"]


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
        (LANES, None),
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


def test_gathering_puts_the_pieces_together():
    image = b"".join(number.to_bytes(8, "little") for number in range(21))
    place = argument_places(Signature("f", Void(), (Parameter(record(I64, I32)),)))[0][0][1]
    assert place.gather(image) == (14).to_bytes(8, "little") + (13).to_bytes(4, "little") + bytes(4)
    assert image[x86_64.STACK_POINTER : x86_64.STACK_POINTER + 8] == (19).to_bytes(8, "little")
