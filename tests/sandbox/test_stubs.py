"""Asking for stubs, in the text of a module."""

from __future__ import annotations

import re

import pytest

from sandbox.compile.codegen import parse
from sandbox.compile.stubs import Flavour, attributes_of, unquote, with_stubs


def marked(ir: str, flavour: Flavour = Flavour.FENTRY, notrace: tuple[str, ...] = ()) -> str:
    """Stubs asked for on `ir` as LLVM prints it; LLVM must accept the result."""
    text = with_stubs(str(parse(ir, "test")), flavour, notrace)
    parse(text, "marked")
    return text


def stubbed(text: str, flavour: Flavour = Flavour.FENTRY) -> list[str]:
    lines = [line for line in text.splitlines() if line.startswith("define ")]
    return [line.split("@")[1].split("(")[0] for line in lines if attributes_of(flavour) in line]


@pytest.mark.parametrize("flavour", [Flavour.FENTRY, Flavour.MCOUNT, Flavour.PATCHABLE])
def test_every_definition_gets_the_attribute(flavour):
    text = marked("define void @f() { ret void }\ndefine i32 @g(i32 %a) noinline { ret i32 %a }", flavour)
    assert stubbed(text, flavour) == ["f", "g"]


def test_declarations_get_none():
    text = marked("declare void @g()\ndefine void @f() { call void @g() ret void }")
    assert attributes_of(Flavour.FENTRY) not in next(line for line in text.splitlines() if "@g()" in line)


def test_notrace_by_attribute_and_by_name():
    ir = 'define void @a() "notrace" { ret void }\ndefine void @b() { ret void }\ndefine void @c() { ret void }'
    assert stubbed(marked(ir, notrace=("c",))) == ["b"]


def test_a_naked_function_has_no_prologue_for_mcount_to_follow():
    ir = 'define void @bare() naked { call void asm sideeffect "ret", ""() unreachable }\ndefine void @f() { ret void }'
    assert stubbed(marked(ir, Flavour.MCOUNT), Flavour.MCOUNT) == ["f"]
    assert stubbed(marked(ir)) == ["bare", "f"]


@pytest.mark.parametrize(
    "definition",
    [
        'define void @"name with \\22quote\\22 (and) #0"() { ret void }',
        "define internal fastcc noundef zeroext i1 @f(i1 noundef zeroext %a) unnamed_addr noinline { ret i1 %a }",
        "define { i64, ptr } @f(ptr byval({ i32, { i64 } }) align 8 %p) { ret { i64, ptr } zeroinitializer }",
        "define void @f(ptr captures(none) initializes((0, 8), (16, 24)) %p, i64 range(i64 0, 10) %b) { ret void }",
        'define void @f(ptr %"a(b", i32 %"c)d") section "te(xt" align 64 { ret void }',
        'define <4 x float> @f(...) local_unnamed_addr noinline section ".text.x" { ret <4 x float> zeroinitializer }',
        "define dso_local hidden [2 x i32] @f() prefix i32 5 prologue i8 -112 { ret [2 x i32] zeroinitializer }",
        "declare i32 @__gxx_personality_v0(...)\ndefine void @f() personality ptr @__gxx_personality_v0 { ret void }",
    ],
)
def test_any_definition_that_llvm_prints_is_read(definition):
    assert len(stubbed(marked(definition))) == 1


def test_stubs_that_the_text_asked_for_itself_are_dropped():
    ir = """
    define void @f() "patchable-function-entry"="3" "patchable-function-prefix"="16" "fentry-call"="true" { ret void }
    define void @g() "instrument-function-entry-inlined"="other" "notrace" { ret void }
    """
    text = marked(ir, Flavour.NONE)
    assert not re.search("fentry-call|patchable|instrument", text)


def test_private_functions_become_internal():
    text = marked("define private void @f() { ret void }\ndefine void @g() { call void @f() ret void }")
    assert "define internal void @f()" in text


def test_a_definition_that_cannot_be_read_is_not_passed_over():
    with pytest.raises(ValueError, match="cannot read the definition 'define gibberish"):
        with_stubs("define gibberish {\n}\n", Flavour.FENTRY)


def test_an_unknown_flavour_is_named():
    with pytest.raises(ValueError, match="no stub flavour 'pg'; there are: fentry, mcount, patchable, none"):
        Flavour.of("pg")


@pytest.mark.parametrize(("name", "plain"), [("f", "f"), ('"a b"', "a b"), (r'"q\22\5C"', 'q"\\')])
def test_names_of_ir_as_symbols(name, plain):
    assert unquote(name) == plain
