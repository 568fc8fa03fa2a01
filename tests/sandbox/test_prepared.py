"""`prepare`: what is asked of LLVM for each function of a user's module."""

from __future__ import annotations

import llvmlite.binding as llvm
import pytest
from llvmlite import ir

import sandbox
from sandbox.compile.codegen import ProgramError, initialize_llvm

IR = """
define i64 @plain(i64 %a) { ret i64 %a }
define i64 @always(i64 %a) alwaysinline { ret i64 %a }
define i64 @quiet(i64 %a) "notrace" { ret i64 %a }
define i64 @nested(ptr nest %a) { ret i64 4 }
define i64 @twice() returns_twice { ret i64 0 }
declare i64 @elsewhere(i64)
"""


def attributes(module: llvm.ModuleRef) -> dict[str, str]:
    return {function.name: b" ".join(function.attributes).decode() for function in module.functions}


def test_every_function_gets_a_stub_and_frame_information_but_those_that_cannot_have_one():
    found = attributes(sandbox.prepare(IR, notrace=["always"]))
    assert {name for name, text in found.items() if '"patchable-function-entry"="5"' in text} == {"plain"}
    assert {name for name, text in found.items() if "uwtable" in text} == found.keys() - {"elsewhere"}


def test_calls_are_kept_where_that_is_asked_and_possible():
    assert not any("noinline" in text for text in attributes(sandbox.prepare(IR)).values())
    found = attributes(sandbox.prepare(IR, noinline=True))
    assert {name for name, text in found.items() if "noinline" in text} == {"plain", "quiet", "nested", "twice"}


def test_modules_of_every_form():
    initialize_llvm()
    built = ir.Module("built")
    block = ir.Function(built, ir.FunctionType(ir.IntType(64), []), "one").append_basic_block()
    ir.IRBuilder(block).ret(ir.Constant(ir.IntType(64), 1))
    parsed = llvm.parse_assembly(str(built))
    parsed.name = "mine"
    for module in (built, str(built), parsed, parsed.as_bitcode()):
        assert '"patchable-function-entry"="5"' in attributes(sandbox.prepare(module))["one"]
    assert sandbox.prepare(parsed).name == "mine"
    assert attributes(parsed) == {"one": ""}


def test_a_prepared_module_can_be_linked_with_others_of_its_context():
    initialize_llvm()
    context = llvm.create_context()
    module = llvm.parse_assembly("define i64 @one() { ret i64 1 }", context)
    other = llvm.parse_assembly("define i64 @two() { ret i64 2 }", context)
    module = sandbox.prepare(module)
    module.link_in(other)
    assert set(attributes(module)) == {"one", "two"}


def test_what_llvm_does_not_accept():
    with pytest.raises(ProgramError, match="<prepare>:1:8: error: expected type"):
        sandbox.prepare("define what")
