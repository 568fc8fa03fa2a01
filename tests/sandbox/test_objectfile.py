"""Finding stubs in objects, and silencing them."""

from __future__ import annotations

import capstone
import llvmlite.binding as llvm
import pytest

from sandbox.compile.codegen import TRIPLE, initialize_llvm, parse
from sandbox.compile.objectfile import StubError, patchable_stub, prepare
from sandbox.compile.program import Options, compile_here, compile_ir
from sandbox.compile.stubs import Flavour, attributes_of, with_stubs
from sandbox.elf import tables as elf
from sandbox.x86_64.encoding import ENDBR64, NOP5

IR = """
declare i64 @abs(i64)
@seen = common global i64 0
define i64 @leaf(i64 %a) {
  ret i64 %a
}
define internal i64 @many(i64 %a, i64 %b, i64 %c, i64 %d, i64 %e, i64 %f, i64 %g) section ".text.cold" {
  %x = call i64 @abs(i64 %g)
  store i64 %x, ptr @seen
  %r = add i64 %x, %a
  ret i64 %r
}
define i64 @caller(i64 %a) {
  %r = call i64 @many(i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 %a)
  ret i64 %r
}
define i64 @untraced(i64 %a) "notrace" {
  ret i64 %a
}
"""
CET = '!llvm.module.flags = !{!0}\n!0 = !{i32 8, !"cf-protection-branch", i32 1}\n'
FLAVOURS = [Flavour.FENTRY, Flavour.MCOUNT, Flavour.PATCHABLE]


def compiled(ir: str, flavour: Flavour, **machine: str | bool) -> bytes:
    """An object for a target machine other than ours."""
    initialize_llvm()
    module = parse(with_stubs(str(parse(ir, "test")), flavour), "test")
    return llvm.Target.from_triple(TRIPLE).create_target_machine(**machine).emit_object(module)


def names_of_stubs(obj) -> set[str]:
    return {
        symbol.name
        for section, offsets in obj.stubs.items()
        for offset in offsets
        for symbol in obj.symbols
        if symbol.section == section and symbol.value <= offset < symbol.value + symbol.size
    }


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("cet", ["", CET])
def test_every_traced_function_has_one_stub_and_it_is_a_nop(flavour, cet):
    obj = prepare(compile_ir(IR + cet, "test", Options(flavour)).object)
    assert obj.kind is flavour
    assert names_of_stubs(obj) == {"leaf", "many", "caller"}
    file = elf.ElfFile(obj.data)
    for section, offsets in obj.stubs.items():
        for offset in offsets:
            assert bytes(file.contents(section)[offset : offset + 5]) == NOP5
    assert sum(map(len, obj.stubs.values())) == 3


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_stub_stands_where_its_flavour_says(flavour):
    obj = prepare(compile_ir(IR, "test", Options(flavour)).object)
    decoder = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    file = elf.ElfFile(obj.data)
    for symbol in obj.symbols:
        if symbol.name not in ("leaf", "many", "caller"):
            continue
        code = bytes(file.contents(symbol.section)[symbol.value : symbol.value + symbol.size])
        before = [mnemonic for _, _, mnemonic, _ in decoder.disasm_lite(code[: code.index(NOP5)], 0)]
        expected = ["push", "mov"] if flavour is Flavour.MCOUNT else []
        assert before[: len(expected)] == expected and bool(before) == bool(expected)


def test_with_branch_protection_the_stub_follows_endbr64():
    obj = prepare(compile_ir(IR + CET, "test", Options(Flavour.FENTRY)).object)
    leaf = next(symbol for symbol in obj.symbols if symbol.name == "leaf")
    code = bytes(elf.ElfFile(obj.data).contents(leaf.section)[leaf.value : leaf.value + 9])
    assert code == ENDBR64 + NOP5
    assert leaf.value + 4 in obj.stubs[leaf.section]


def test_hooks_are_not_wanted_any_more():
    obj = prepare(compile_ir(IR, "test", Options(Flavour.FENTRY)).object)
    assert obj.undefined == {"abs"}
    file = elf.ElfFile(obj.data)
    table = file.sections_of_type(elf.SHT_SYMTAB)[0]
    names = [elf.string_at(file.strings(table), symbol.name_offset) for symbol in file.symbols(table)]
    used = {
        names[relocation.symbol]
        for index in file.sections_of_type(elf.SHT_RELA)
        for relocation in file.relocations(index)
        if relocation.type != elf.R_X86_64_NONE
    }
    assert "abs" in used and "__fentry__" not in used


def test_tables_of_patchable_entries_are_hidden_from_the_linker():
    data = compile_ir(IR, "test", Options(Flavour.PATCHABLE)).object
    before, after = elf.ElfFile(data), elf.ElfFile(prepare(data).data)
    tables = before.sections_named("__patchable_function_entries")
    assert len(tables) == 3
    assert all(after.sections[table].type == elf.SHT_NULL and not after.sections[table].flags for table in tables)


def test_a_program_without_stubs_has_kind_none():
    obj = prepare(compile_ir(IR, "test", Options(Flavour.NONE)).object)
    assert obj.kind is Flavour.NONE and not obj.stubs
    assert {"leaf", "many", "caller", "untraced", "seen"} <= {symbol.name for symbol in obj.symbols}


def test_mcount_of_the_large_code_model_is_refused_with_the_reason():
    data = compiled(IR, Flavour.MCOUNT, codemodel="large", jit=True)
    with pytest.raises(StubError, match=r"not a 5-byte call \(48 b8 .*compile for the small code model"):
        prepare(data)


def test_fentry_of_the_large_code_model_is_a_near_call_all_the_same():
    obj = prepare(compiled(IR, Flavour.FENTRY, codemodel="large", jit=True))
    assert names_of_stubs(obj) == {"leaf", "many", "caller"}


def test_a_mixture_of_flavours_is_refused():
    text = str(parse("define void @f() { ret void }\ndefine void @g() { ret void }", "test"))
    for name, flavour in (("f", Flavour.FENTRY), ("g", Flavour.MCOUNT)):
        text = text.replace(f"@{name}() ", f"@{name}() {attributes_of(flavour)} ")
    initialize_llvm()
    machine = llvm.Target.from_triple(TRIPLE).create_target_machine(reloc="pic", codemodel="small")
    with pytest.raises(StubError, match="mixes stubs of the flavours fentry and mcount"):
        prepare(machine.emit_object(parse(text, "test")))


def test_thread_local_variables_are_refused_before_llvm_aborts_on_them():
    ir = """
    @state = thread_local global i32 0
    declare ptr @llvm.threadlocal.address.p0(ptr)
    define i32 @f() {
      %p = call ptr @llvm.threadlocal.address.p0(ptr @state)
      %v = load i32, ptr %p
      ret i32 %v
    }
    """
    with pytest.raises(StubError, match="thread-local variable 'state'"):
        prepare(compile_ir(ir, "test", Options(Flavour.FENTRY)).object)


def test_an_entry_of_another_length_is_refused():
    assert patchable_stub(b"\x90" * 5, 0) == 0
    assert patchable_stub(ENDBR64 + b"\x90" * 5, 0) == 4
    with pytest.raises(StubError, match="holds 0f 1f 00 55 48, not 5 bytes of NOP"):
        patchable_stub(bytes.fromhex("0f1f00 55 4889e5"), 0)


def test_constructors_run_by_priority():
    ir = """
    @llvm.global_ctors = appending global [3 x { i32, ptr, ptr }] [
      { i32, ptr, ptr } { i32 65535, ptr @last, ptr null },
      { i32, ptr, ptr } { i32 200, ptr @second, ptr null },
      { i32, ptr, ptr } { i32 100, ptr @first, ptr null }]
    define void @last() { ret void }
    define void @second() { ret void }
    define void @first() { ret void }
    """
    obj = prepare(compile_ir(ir, "test", Options(Flavour.FENTRY)).object)
    places = {(symbol.section, symbol.value): symbol.name for symbol in obj.symbols}
    assert [places[place] for place in obj.constructors] == ["first", "second", "last"]


@pytest.mark.stress
def test_more_sections_than_the_header_can_count():
    """Past 65,280 sections ELF keeps their number elsewhere. (Were this quadratic, it would take minutes.)"""
    count = 2_000
    lines = [f'module asm ".section .filler.{i}, \\22aw\\22"' for i in range(62_000)]
    lines += [f"define void @f{i}() {{ ret void }}" for i in range(count)]
    data = compile_here("\n".join(lines), "test", Options(Flavour.PATCHABLE, opt=0)).object
    obj = prepare(data)
    assert len(elf.ElfFile(data).sections) > 65_536
    assert sum(map(len, obj.stubs.values())) == count
