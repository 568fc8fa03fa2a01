"""Signatures read from printed IR."""

from __future__ import annotations

import pytest

from sandbox.abi.signatures import Array, Floating, Integer, Pointer, Record
from sandbox.compile.codegen import parse
from sandbox.compile.irtypes import IrInterface, declarations


def interface(ir: str) -> IrInterface:
    return IrInterface(declarations(str(parse(ir, "test"))))


def body(returns: str) -> str:
    return " { ret void }" if returns == "void" else f" {{ ret {returns} zeroinitializer }}"


@pytest.mark.parametrize(
    "returns",
    ["void", "i1", "i64", "i128", "half", "double", "x86_fp80", "ptr", "{ i64, ptr }", "<{ i8, i32 }>", "[3 x i16]",
     "<4 x float>", "%pair", "{ %pair, [2 x %pair] }"],
)  # fmt: skip
def test_return_types_behind_any_prefix(returns):
    types = "%pair = type { i32, double }\n"
    for prefix in ("", "internal ", "linkonce_odr hidden fastcc ", "dso_local cc 99 "):
        found = interface(types + f"define {prefix}{returns} @f(){body(returns)}").signature("f")
        assert found is not None
        expected = returns.replace("{ ", "{").replace(" }", "}")
        assert str(found.returns) == expected


def test_attributes_of_the_result_are_not_its_type():
    found = interface("define noundef align 8 dereferenceable(16) ptr @f() { ret ptr null }").signature("f")
    assert str(found) == "ptr f()"


def test_parameters_with_names_and_attributes():
    found = interface(
        "define void @f(i8 signext %a, ptr noalias captures(none) %file, i64 range(i64 0, 10), "
        'ptr byval({ i32, i32 }) align 16 %"by value", ...) { ret void }'
    ).signature("f")
    assert [parameter.name for parameter in found.parameters] == ["a", "file", "", "by value"]
    assert found.parameters[0].attributes == ("signext",)
    assert found.parameters[3].copied == Record((("_0", Integer(32)), ("_1", Integer(32))))
    assert "align 16" in found.parameters[3].attributes
    assert found.variadic


def test_the_room_for_a_result_is_not_passed():
    found = interface("%S = type { i64, i8 }\ndefine void @f(ptr sret(%S) %out, i32 %x) { ret void }").signature("f")
    assert [parameter.name for parameter in found.passed] == ["x"]
    assert str(found.result) == "%S"
    assert str(found) == "void f(ptr sret(%S) out, i32 x)"


def test_nested_types():
    ir = '%inner = type <{ i8, %"odd name" }>\n%"odd name" = type { [2 x <4 x half>], ptr }\n'
    found = interface(ir + "define %inner @f(ptr addrspace(1) %p) { ret %inner zeroinitializer }").signature("f")
    inner = found.returns
    assert isinstance(inner, Record) and inner.packed and inner.name == "%inner"
    odd = inner.fields[1][1]
    assert odd == Record((("_0", Array(Array(Floating("half"), 4, True), 2)), ("_1", Pointer())), '%"odd name"')


def test_aliases_have_the_signature_of_what_they_stand_for():
    found = interface("@g = weak alias i64 (i64), ptr @f\ndefine i64 @f(i64 %a) { ret i64 %a }")
    assert str(found.signature("g")) == "i64 f(i64 a)"
    assert found.signature("h") is None


def test_attributes_of_functions():
    found = interface("define void @f() returns_twice noinline { ret void }\ndefine void @g() { ret void }")
    assert found.functions_with("returns_twice") == {"f"}
    assert found.functions_with("nosuch") == frozenset()


def test_where_scratch_registers_are_taken():
    found = interface(
        """
        define void @plain() { ret void }
        define fastcc void @fast() { ret void }
        define void @chain(ptr nest %p) { ret void }
        define preserve_mostcc void @most() { ret void }
        define cc 10 void @haskell() { ret void }
        define void @named_nest(ptr %nest) { ret void }
        define swiftcc void @swift() { ret void }
        define void @split() "split-stack" { ret void }
        """
    )
    assert found.scratch_taken == {"chain", "most", "haskell", "swift", "split"}


def test_only_what_is_asked_for_is_kept():
    text = declarations(str(parse('@s = global [4 x i8] c"text"\ndefine void @f() { ret void }', "test")))
    assert text == "define void @f() {"
