"""What is read of the objects of JIT compilers."""

from __future__ import annotations

import llvmlite.binding as llvm

import sandbox
from sandbox.elf import tables as elf
from sandbox.images.jit_objects import read_object

TEXT = 0x7F0000001000
IR = "define i64 @f(i64 %a) { ret i64 %a }\ndefine i64 @g(i64 %a) { ret i64 %a }"


def _read(module):
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(codemodel="small", reloc="pic")
    data = machine.emit_object(module)
    return read_object(1, elf.placed(data, {elf.ElfFile(data).sections_named(".text")[0]: TEXT}))


def test_stubs_of_prepared_modules_are_known():
    obj = _read(sandbox.prepare(IR, notrace=["g"]))
    assert [symbol.name for symbol in obj.functions if symbol.address in obj.stubs] == ["f"]


def test_patchable_entries_of_others_are_no_stubs_since_r10_and_r11_may_not_be_free():
    marked = IR.replace("{", '"patchable-function-entry"="5" {')
    assert _read(llvm.parse_assembly(marked)).stubs == frozenset()
