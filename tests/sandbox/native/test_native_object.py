"""What compiled objects look like: C's layout, the instructions that were asked for, lines of the Python source."""

from __future__ import annotations

import ctypes
import io
import shutil
import subprocess
from pathlib import Path
from typing import Any

import capstone
import pytest
from elftools.elf.elffile import ELFFile
from llvmlite import binding
from native_machine import define
from native_programs import ALL, PROGRAM, unit

from sandbox.native import Unit, extern, fn, u64
from sandbox.native.back.compile import compile_unit, target_machine
from sandbox.native.back.lowering import ir
from sandbox.native.back.module import DATA_LAYOUT
from sandbox.native.front.structs import Struct


def test_the_data_layout_is_llvms() -> None:
    assert str(target_machine().target_data) == DATA_LAYOUT


def structs() -> list[Struct]:
    return [value for value in define(PROGRAM).values() if isinstance(value, Struct)]


@pytest.mark.parametrize("struct", structs(), ids=str)
def test_struct_layout_is_that_of_c_and_of_llvm(struct: Any) -> None:
    name = f"use_{struct}"
    text = f"@native\ndef {name}(p: ptr[{struct}]) -> void:\n    zero_fill(addressof(p[1]))\n"
    function = define(text, **{str(struct): struct})[name]
    module = binding.parse_assembly(ir(Unit("layout", [function])), binding.create_context())
    data, type_ = target_machine().target_data, module.get_struct_type(str(struct))
    assert data.get_abi_size(type_) == struct.size == ctypes.sizeof(struct.ctypes)
    for index, field in enumerate(struct.fields):
        assert data.get_element_offset(type_, index) == struct.offset(field) == getattr(struct.ctypes, field).offset


def disassembly(data: bytes) -> list[str]:
    section = ELFFile(io.BytesIO(data)).get_section_by_name(".text")
    lite = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64).disasm_lite(section.data(), 0)
    return [f"{mnemonic} {operands}".strip() for _, _, mnemonic, operands in lite]


SINGLE = """
@native
def f(p: ptr[{word}], n: {word}) -> void:
    single_add(p, 1)
    single_sub(p, 5)
    single_add(p, n)
"""


@pytest.mark.parametrize(("word", "size"), [("u8", "byte"), ("i16", "word"), ("u32", "dword"), ("u64", "qword")])
def test_a_single_add_is_one_instruction(word: str, size: str) -> None:
    lines = disassembly(compile_unit(unit("f", text=SINGLE.format(word=word))))
    assert len(lines) == 4
    assert lines[0] == f"add {size} ptr [rdi], 1" and lines[1] == f"sub {size} ptr [rdi], 5"
    assert lines[2].startswith(f"add {size} ptr [rdi], ")


def test_a_signal_fence_costs_nothing_and_keeps_stores_apart() -> None:
    text = "@native\ndef f(p: ptr[u64]) -> void:\n    p[0] = 1\n    {fence}\n    p[0] = 2\n"
    fenced = disassembly(compile_unit(unit("f", text=text.format(fence="signal_fence()"))))
    assert fenced == ["mov qword ptr [rdi], 1", "mov qword ptr [rdi], 2", "ret"]
    assert len(disassembly(compile_unit(unit("f", text=text.format(fence="pass"))))) == 2


VOLATILE = """
@native
def f(p: ptr[u64]) -> u64:
    volatile_store(p, 1)
    volatile_store(p, 1)
    return volatile_load(p)
"""


def test_volatile_accesses_happen_each_time() -> None:
    text = VOLATILE
    assert [line.split()[0] for line in disassembly(compile_unit(unit("f", text=text)))] == ["mov", "mov", "mov", "ret"]


RED_ZONE = """
@native
def f(n: u8) -> u8:
    a: array[u8, 8] = zeroed
    volatile_store(addressof(a[n]), n)
    return a[3]
"""


def test_the_red_zone_can_be_forbidden() -> None:
    text = RED_ZONE
    free, forbidden = (disassembly(compile_unit(unit("f", text=text, red_zone=zone))) for zone in (True, False))
    assert not any("rsp, " in line for line in free)
    assert any(line.startswith(("sub rsp", "push")) for line in forbidden)


def line_table(data: bytes) -> dict[int, int]:
    """Address -> line of the source."""
    info = ELFFile(io.BytesIO(data)).get_dwarf_info()
    unit_ = next(info.iter_CUs())
    states = [entry.state for entry in info.line_program_for_CU(unit_).get_entries() if entry.state]
    return {state.address: state.line for state in states if not state.end_sequence}


def test_every_statement_has_its_line() -> None:
    text = "@native\ndef f(p: ptr[u64], n: u64) -> void:\n    volatile_store(p, n)\n\n    volatile_store(p, n * 5)\n"
    lines = line_table(compile_unit(unit("f", text=text)))
    assert list(dict.fromkeys(lines.values())) == [3, 5]


GDB_SCRIPT = """
set confirm off
set debuginfod enabled off
file {object}
info line f
list f
info scope f
"""


@pytest.mark.skipif(shutil.which("gdb") is None, reason="gdb is not installed")
def test_gdb_knows_the_source(tmp_path: Path) -> None:
    source = tmp_path / "handlers.py"
    source.write_text("from sandbox.native import *\n\n\n@native\ndef f(a: u64) -> u64:\n    return a * 7\n")
    namespace: dict[str, Any] = {}
    exec(compile(source.read_text(), str(source), "exec"), namespace)
    (tmp_path / "f.o").write_bytes(compile_unit(Unit("handlers", [namespace["f"]])))
    (tmp_path / "script").write_text(GDB_SCRIPT.format(object=tmp_path / "f.o"))
    command = ["gdb", "-nx", "-batch", "-x", str(tmp_path / "script")]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    assert 'of "' in shown and "handlers.py" in shown
    assert "return a * 7" in shown


def test_the_same_functions_give_the_same_bytes() -> None:
    functions = unit(*ALL).functions
    assert compile_unit(Unit("test", functions)) == compile_unit(Unit("test", functions))


PREFETCH = """
@native
def f(p: ptr[u8]) -> void:
    prefetch(addressof(p[256]))
"""


def test_a_prefetch_is_one_instruction_on_every_cpu() -> None:
    assert disassembly(compile_unit(unit("f", text=PREFETCH)))[0].startswith("prefetchw byte ptr [rdi + 0x100]")


SINGLE_CAS = """
@native
def f(p: ptr[{word}], old: {word}, new: {word}) -> bool:
    return single_cas(p, old, new)
"""


@pytest.mark.parametrize(("word", "size"), [("u8", "byte"), ("u32", "dword"), ("u64", "qword")])
def test_a_single_cas_is_one_instruction_without_a_lock(word: str, size: str) -> None:
    lines = disassembly(compile_unit(unit("f", text=SINGLE_CAS.format(word=word))))
    (exchange,) = (line for line in lines if "cmpxchg" in line)
    assert exchange.startswith(f"cmpxchg {size} ptr [rdi]")


EXTERN = """
other = extern("other", fn[u64, u64], cc="{cc}")


@native(cc="preserve_most")
def f(x: u64) -> u64:
    if unlikely(x == 0):
        return other(x)
    return x + 1
"""


def test_an_external_function_keeps_the_registers_of_its_convention() -> None:
    def stores(cc: str) -> int:
        lines = disassembly(compile_unit(unit("f", text=EXTERN.format(cc=cc))))
        return sum(line.startswith("push") for line in lines)

    assert stores("preserve_most") <= 1 < stores("c")


def test_an_unknown_convention_is_refused() -> None:
    with pytest.raises(ValueError, match="cc must be one of c, preserve_most, preserve_all, not 'fast'"):
        extern("other", fn[u64, u64], cc="fast")
