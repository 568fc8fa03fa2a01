"""The tables of ELF files, compared with what pyelftools reads."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from sampled import in_stress

from sandbox.compile.program import Options, compile_ir
from sandbox.compile.stubs import Flavour
from sandbox.elf import tables as elf

IR = """
@table = internal global [2 x ptr] [ptr @f, ptr @g]
define i64 @f(i64 %a) {
  ret i64 %a
}
define internal i64 @g(i64 %a) section ".text.other" {
  %r = call i64 @f(i64 %a)
  ret i64 %r
}
"""


@pytest.fixture(scope="module", params=["fentry", "patchable", in_stress("library")])
def data(request):
    if request.param == "library":
        import llvmlite.binding

        directory = Path(llvmlite.binding.__file__).parents[1]
        extension = next(iter(sorted(Path(sys.prefix).rglob("_capstone*.so"))), None)
        library = extension or next(iter(sorted(directory.parent.rglob("libcapstone.so*"))))
        return library.read_bytes()
    return compile_ir(IR, "test", Options(Flavour(request.param))).object


def test_sections_are_what_pyelftools_reads(data):
    ours, theirs = elf.ElfFile(data), ELFFile(io.BytesIO(data))
    assert len(ours.sections) == theirs.num_sections()
    for i, section in enumerate(theirs.iter_sections()):
        assert ours.section_name(i) == section.name
        header = section.header
        mine = ours.sections[i]
        assert (mine.flags, mine.address, mine.offset, mine.size, mine.link, mine.info) == (
            header["sh_flags"],
            header["sh_addr"],
            header["sh_offset"],
            header["sh_size"],
            header["sh_link"],
            header["sh_info"],
        )


def test_symbols_are_what_pyelftools_reads(data):
    ours, theirs = elf.ElfFile(data), ELFFile(io.BytesIO(data))
    index = (ours.sections_of_type(elf.SHT_SYMTAB) or ours.sections_of_type(elf.SHT_DYNSYM))[0]
    strings = ours.strings(index)
    mine = [(elf.string_at(strings, s.name_offset), s.value, s.size) for s in ours.symbols(index)]
    table = theirs.get_section(index)
    # pyelftools gives section symbols the name of their section; the table has none.
    expected = [
        ("" if s["st_info"]["type"] == "STT_SECTION" else s.name, s["st_value"], s["st_size"])
        for s in table.iter_symbols()
    ]
    assert mine == expected


def test_relocations_are_what_pyelftools_reads(data):
    ours, theirs = elf.ElfFile(data), ELFFile(io.BytesIO(data))
    for index in ours.sections_of_type(elf.SHT_RELA):
        expected = [
            (r["r_offset"], r["r_info_type"], r["r_info_sym"], r["r_addend"])
            for r in theirs.get_section(index).iter_relocations()
        ]
        assert [tuple(relocation) for relocation in ours.relocations(index)] == expected


def test_segments_are_what_pyelftools_reads():
    data = Path(sys.executable).resolve().read_bytes()
    theirs = ELFFile(io.BytesIO(data))
    expected = [(s["p_flags"], s["p_offset"], s["p_vaddr"], s["p_memsz"]) for s in theirs.iter_segments()]
    ours = [(s.flags, s.offset, s.address, s.memory_size) for s in elf.ElfFile(data).segments()]
    assert ours == expected


def test_a_placed_section_has_that_address_and_nothing_else_changes():
    data = compile_ir(IR, "test", Options(Flavour.FENTRY)).object
    text = elf.ElfFile(data).sections_named(".text")[0]
    placed = elf.ElfFile(elf.placed(data, {text: 0x1234000}))
    assert placed.sections[text].address == 0x1234000
    assert [s._replace(address=0) for s in placed.sections] == elf.ElfFile(data).sections


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"#!/bin/sh\n", b"\x7fELF\x01\x01" + bytes(60)])
def test_what_is_no_elf_file_is_refused(data):
    with pytest.raises(elf.ElfError):
        elf.ElfFile(data)


@pytest.mark.parametrize("size", [20, 64, 100])
def test_a_file_that_is_cut_off_is_refused(size):
    data = compile_ir(IR, "test", Options(Flavour.FENTRY)).object
    with pytest.raises(elf.ElfError, match="the ELF file is truncated"):
        elf.ElfFile(data[:size])


def test_another_machine_is_refused():
    data = bytearray(compile_ir(IR, "test", Options(Flavour.FENTRY)).object)
    data[18] = 183  # EM_AARCH64
    with pytest.raises(elf.ElfError, match="not for x86-64: machine 183"):
        elf.ElfFile(data)
